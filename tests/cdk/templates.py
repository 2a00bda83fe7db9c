"""Reading synthesized templates: plain dictionaries, and rights as a set of lines."""

import json

FOREIGN_STREAM = "arn:aws:kinesis:eu-central-1:999999999999:stream/orders"


def of_type(template, kind, *, inside=""):
    """Logical id to properties of all resources of a type, of those whose id begins `inside`."""
    return {
        name: resource.get("Properties", {})
        for name, resource in template["Resources"].items()
        if resource["Type"] == kind and name.startswith(inside)
    }


def only(template, kind, *, inside=""):
    found = of_type(template, kind, inside=inside)
    assert len(found) == 1, f"{kind} inside {inside!r}: {sorted(found)}"
    return next(iter(found.values()))


def spelled(value):
    """A value as text, references in angle brackets."""
    match value:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [separator, parts]}:
            return separator.join(map(spelled, parts))
        case {"Fn::Select": [index, {"Fn::Split": [separator, whole]}]}:
            return f"part {index} of {spelled(whole)} by {separator}"
        case str() | {"Fn::Sub": str()}:
            return value if isinstance(value, str) else value["Fn::Sub"]
        case _:
            return json.dumps(value, sort_keys=True)


def _listed(value):
    return value if isinstance(value, list) else [value]


def statements(template, role):
    """Every policy statement of a role: inline ones, and those of policies attached to it."""
    documents = [p["PolicyDocument"] for p in template["Resources"][role]["Properties"]["Policies"]]
    documents += [
        policy["PolicyDocument"]
        for policy in of_type(template, "AWS::IAM::Policy").values()
        if {"Ref": role} in policy["Roles"]
    ]
    return [statement for document in documents for statement in document["Statement"]]


def rights(template, role, *, effect="Allow"):
    """Every right of a role as `action on resource`, with ` if condition` where there is one."""
    found = set()
    for statement in statements(template, role):
        condition = statement.get("Condition")
        suffix = f" if {conditions(condition)}" if condition else ""
        if statement["Effect"] == effect:
            found |= {
                f"{action} on {spelled(resource)}{suffix}"
                for action in _listed(statement["Action"])
                for resource in _listed(statement["Resource"])
            }
    return found


def denials(template, role):
    """What a role is denied, as `rights` has it."""
    return rights(template, role, effect="Deny")


def conditions(condition):
    return " and ".join(
        f"{name} {operator} {' | '.join(map(spelled, _listed(wanted)))}"
        for operator, pairs in sorted(condition.items())
        for name, wanted in sorted(pairs.items())
    )


def definition(template, *, inside=""):
    """The state machine's definition, parsed."""
    return json.loads(
        spelled(
            only(template, "AWS::StepFunctions::StateMachine", inside=inside)["DefinitionString"]
        )
    )
