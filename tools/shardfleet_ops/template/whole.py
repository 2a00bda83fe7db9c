"""A template as a whole: its size, its roles, and the part of AWS that it is written for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from shardfleet_ops.template.reading import (
    Template,
    TemplateFault,
    least_length,
    listed,
    texts,
)

SIZE_MOST, RESOURCES_MOST = 1_000_000, 500  # CloudFormation quotas: TemplateURL, resources.
INLINE_POLICIES_MOST, TRUST_POLICY_MOST = 10_240, 2_048  # IAM quotas of a role, without blanks.
_SIZE_WARNING = 0.9

_SUFFIX = re.compile(r"(?:<AWS::Region>|cn-[a-z]+-\d)\.amazonaws\.com(?!\.cn)")
_ARN = re.compile(r"\barn:aws:(?:[a-z0-9-]+:(?:<|[a-z0-9-]*:(?:<|aws:policy))|iam::)")


def size(template: Template) -> Iterator[TemplateFault]:
    """F04: a template has a size and a number of resources."""
    count = len(template.body.get("Resources", {}))
    full = max(template.size / SIZE_MOST, count / RESOURCES_MOST)
    if full > _SIZE_WARNING:
        yield TemplateFault(
            certain=full > 1,
            fact="F04",
            where=template.name,
            found=f"{template.size:,} bytes and {count} resources",
            allowed=f"{SIZE_MOST:,} bytes, {RESOURCES_MOST} resources",
            remedy="put some of the fleets into a stack of their own",
        )


def partition(template: Template) -> Iterator[TemplateFault]:
    """A19: in China hosts end in amazonaws.com.cn; outside of aws, ARNs begin otherwise."""
    if template.partition == "aws":
        return
    for resource in template.resources():
        found = sorted(set(texts(resource.properties)))
        wrong = [
            text for text in found if template.partition != "aws-us-gov" and _SUFFIX.search(text)
        ]
        wrong += [text for text in found if _ARN.search(text)]
        if wrong:
            yield TemplateFault(
                certain=bool(template.partition),
                fact="A19",
                where=resource.path,
                found=", ".join(repr(text) for text in wrong[:3]),
                allowed="amazonaws.com.cn and arn:aws-cn in China, arn:aws-us-gov in GovCloud",
                remedy="use AWS::URLSuffix and AWS::Partition",
            )


def large_policies(template: Template) -> Iterator[TemplateFault]:
    """I05: a role's inline policies together, and its trust policy, have a size."""
    for role in template.resources("AWS::IAM::Role"):
        documents = [each.get("PolicyDocument") for each in listed(role.properties.get("Policies"))]
        documents += [
            policy.properties.get("PolicyDocument")
            for policy in template.resources("AWS::IAM::Policy")
            if {"Ref": role.logical_id} in listed(policy.properties.get("Roles"))
        ]
        inline = sum(_least(each) for each in documents)
        trust = _least(role.properties.get("AssumeRolePolicyDocument"))
        if inline > INLINE_POLICIES_MOST or trust > TRUST_POLICY_MOST:
            yield TemplateFault(
                certain=True,
                fact="I05",
                where=role.path,
                found=f"{inline:,} characters of inline policies, {trust:,} of trust, or more",
                allowed=f"{INLINE_POLICIES_MOST:,} and {TRUST_POLICY_MOST:,}",
                remedy="grant by prefix instead of one by one, or attach managed policies",
            )


def _least(document: object) -> int:
    """Return how long a policy is at least: structure and text, references as none."""
    return len(json.dumps(_without_references(document), separators=(",", ":")))


def _without_references(value: object) -> object:
    match value:
        case {"Ref": _} | {"Fn::GetAtt": _}:
            return ""
        case {"Fn::Join": _} | {"Fn::Sub": _}:
            return "x" * least_length(value)
        case dict():
            return {name: _without_references(inside) for name, inside in value.items()}
        case list():
            return [_without_references(inside) for inside in value]
        case _:
            return value
