"""Each shard's documents in order, each deleted after its call, one that fails holds its shard."""

import json

from msgspec.structs import replace

from shardfleet.engine.ports import HandlerResult
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet_ops.operate.given_up import given_up_of
from shardfleet_ops.operate.redrive import Redriven, redrive
from tests.engine.operating.test_given_up import document
from tests.virtual import in_a_loop

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def kept_at(shard_id, number):
    text = json.loads(document())
    text["KinesisBatchInfo"] |= {"shardId": shard_id, "startSequenceNumber": str(number)}
    event = json.loads(text["payload"])
    event["Records"][0]["kinesis"]["sequenceNumber"] = str(number)
    text["payload"] = json.dumps(event)
    return given_up_of(json.dumps(text), where=f"{shard_id[-1]}/{number}")


class Kept:
    """Documents; ``fails`` says which call of which raises."""

    def __init__(self, *documents):
        self.documents = {each.where: each for each in documents}
        self.story = []
        self.fails = {}

    async def look(self):
        return [replace(each, payload="") for each in self.documents.values()]

    async def take(self, document, *, within_s):
        assert within_s == 90
        self._tell("take", document)
        return self.documents[document.where]

    async def delete(self, document):
        self._tell("delete", document)
        del self.documents[document.where]

    async def leave(self, documents):
        self.story += [f"leave {each.where}" for each in documents]

    def _tell(self, what, document):
        self.story.append(f"{what} {document.where}")
        if error := self.fails.get(f"{what} {document.where}"):
            raise error


@in_a_loop
async def redriven(kept, answers):
    async def handle(event):
        number = event["Records"][0]["kinesis"]["sequenceNumber"]
        kept.story.append(f"handle {number}")
        answer = answers.get(number, HandlerResult(done_count=1))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return await redrive(await kept.look(), kept=kept, handle=handle, within_s=90)


def test_each_is_deleted_after_it_was_handled_in_order():
    kept = Kept(kept_at(SECOND, 5), kept_at(FIRST, 100), kept_at(FIRST, 99))
    assert redriven(kept, {}) == [
        Redriven(shard_id=FIRST, records=2),
        Redriven(shard_id=SECOND, records=1),
    ]
    assert kept.story == [
        *("take 0/99", "handle 99", "delete 0/99"),
        *("take 0/100", "handle 100", "delete 0/100"),
        *("take 1/5", "handle 5", "delete 1/5"),
    ]
    assert not kept.documents


def test_one_that_fails_is_left_with_what_is_behind_it_and_other_shards_go_on():
    kept = Kept(*(kept_at(FIRST, n) for n in (1, 2, 3)), kept_at(SECOND, 4))
    answers = {"2": HandlerResult(done_count=0, error="ValueError")}
    assert redriven(kept, answers) == [
        Redriven(shard_id=FIRST, records=1, left=2, where="0/2", error="ValueError"),
        Redriven(shard_id=SECOND, records=1),
    ]
    assert set(kept.documents) == {"0/2", "0/3"}
    assert [each for each in kept.story if each.startswith("leave")] == ["leave 0/2", "leave 0/3"]
    assert "handle 3" not in kept.story


def test_less_than_all_is_not_handled_whatever_is_said():
    kept = Kept(kept_at(FIRST, 1))
    (result,) = redriven(kept, {"1": HandlerResult(done_count=0)})
    assert result.error == "0 of 1 records were handled"
    assert set(kept.documents) == {"0/1"}


def test_no_answer_and_a_refusal_leave_what_was_asked_for():
    for error in (OutcomeUnknown("silence"), Throttled("later")):
        kept = Kept(kept_at(FIRST, 1))
        (result,) = redriven(kept, {"1": error})
        assert (result.left, result.error) == (1, str(error))
        assert set(kept.documents) == {"0/1"}


def test_what_cannot_be_taken_is_not_handled_and_what_cannot_be_deleted_comes_again():
    kept = Kept(kept_at(FIRST, 1), kept_at(FIRST, 2))
    kept.fails = {"take 0/1": Throttled("later")}
    (result,) = redriven(kept, {})
    assert (result.left, result.where) == (2, "0/1")
    assert not [each for each in kept.story if each.startswith("handle")]

    kept = Kept(kept_at(FIRST, 1))
    kept.fails = {"delete 0/1": OutcomeUnknown("silence")}
    (result,) = redriven(kept, {})
    assert (result.records, result.left) == (0, 1)
    assert set(kept.documents) == {"0/1"}
