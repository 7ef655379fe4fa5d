"""The tour of the broker in Python, on stubs that grpcio-tools generated: tour.py HOST:PORT

Each step is a function that asserts what it sees. The steps share topics and go in their order. A step that fails ends
the program with a traceback and a code other than 0.
"""

import queue as threads
import sys

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import code_pb2, error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from duewheel.v1 import admin_pb2, admin_pb2_grpc, dead_pb2, queue_pb2, queue_pb2_grpc

TOPIC = "bank-py"
JOBS = "jobs-py"
# Longer than any step takes; only a broker that hangs reaches it.
HANGS = 30


def seconds(count):
    return Duration(nanos=round(count * 1e9) % 10**9, seconds=int(count))


class Refusal:
    """A google.rpc.Status, taken apart; it is the form of a failed call and of a failed item."""

    def __init__(self, status):
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        for detail in status.details:
            assert detail.Unpack(info) or detail.Unpack(bad) or detail.Unpack(retry), detail
        assert info.domain == "duewheel", status
        self.code = code_pb2.Code.Name(status.code)
        self.reason = info.reason
        self.outcome = info.metadata["outcome"]
        self.metadata = dict(info.metadata)
        self.fields = [violation.field for violation in bad.field_violations]
        self.message = status.message

    def must_be(self, code, reason, outcome="not_done"):
        assert (self.code, self.reason, self.outcome) == (code, reason, outcome), vars(self)
        assert self.message
        return self


class Tour:
    def __init__(self, channel):
        self.channel = channel
        self.queue = queue_pb2_grpc.QueueServiceStub(channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        services = [s for module in [queue_pb2, admin_pb2] for s in module.DESCRIPTOR.services_by_name.values()]
        self.methods = {method.name: method for service in services for method in service.methods}
        self.services = {service.full_name for service in services}
        self.called = set()

    def answers(self, stub, name, /, **fields):
        """Every answer of a call with one request, whether it has one answer or streams several."""
        method = self.methods[name]
        answer = getattr(stub, name)(method.input_type._concrete_class(**fields), timeout=HANGS)
        answers = [answer] if isinstance(answer, Message) else list(answer)
        # What was only ever refused does not count.
        self.called.add(name)
        return answers

    def call(self, stub, name, /, **fields):
        """The one answer of a call."""
        (answer,) = self.answers(stub, name, **fields)
        return answer

    def refused(self, stub, name, /, **fields):
        """One unary call that must fail; why it failed."""
        try:
            answer = self.call(stub, name, **fields)
        except grpc.RpcError as error:
            status = rpc_status.from_call(error)
            assert status is not None, f"{name} failed without details: {error}"
            return Refusal(status)
        raise AssertionError(f"{name} was not refused: {answer}")

    def produce(self, *messages, topic=TOPIC):
        return list(self.call(self.queue, "Produce", topic=topic, messages=messages).results)

    def stored(self, **fields):
        """Produces one message, which must be stored."""
        (result,) = self.produce(queue_pb2.NewMessage(**fields))
        assert result.WhichOneof("result") == "produced", result
        return result.produced

    def fetch_one(self, **fields):
        """Waits for the next delivery."""
        answer = self.call(self.queue, "Fetch", topic=TOPIC, wait=seconds(20), consumer="tour", **fields)
        (delivery,) = answer.deliveries
        return delivery

    def ack(self, *receipts):
        return list(self.call(self.queue, "Ack", receipts=receipts).results)

    def nack(self, receipt, reason, **fields):
        nack = queue_pb2.NackItem(receipt=receipt, reason=reason, **fields)
        (result,) = self.call(self.queue, "Nack", nacks=[nack]).results
        return result

    def show(self, key):
        return self.call(self.queue, "GetMessage", topic=TOPIC, message=by_key(key)).message

    def cancel(self, key, **fields):
        return self.call(self.queue, "Cancel", topic=TOPIC, message=by_key(key), **fields)

    # The steps.

    def health(self):
        stub = health_pb2_grpc.HealthStub(self.channel)
        for service in ["", "duewheel.v1.QueueService", "duewheel.v1.AdminService"]:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=HANGS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, (service, answer)
        try:
            stub.Check(health_pb2.HealthCheckRequest(service="no.such.Service"), timeout=HANGS)
            raise AssertionError("an unknown service is not known to be healthy")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND, error
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=HANGS)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()

    def reflection(self):
        """Reflection describes the services exactly as the stubs do, and the details of errors too."""
        database = ProtoReflectionDescriptorDatabase(self.channel)
        services = set(database.get_services())
        assert "grpc.health.v1.Health" in services
        # What the tour counts as called are the methods of these.
        assert {name for name in services if name.startswith("duewheel.")} == self.services, services
        for module in [queue_pb2, admin_pb2]:
            reflected = database.FindFileByName(module.DESCRIPTOR.name)
            for service in reflected.service:
                generated = module.DESCRIPTOR.services_by_name[service.name]
                assert [m.name for m in service.method] == [m.name for m in generated.methods], service.name
            assert [m.name for m in reflected.message_type] == list(module.DESCRIPTOR.message_types_by_name)
        for name in ["google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.RetryInfo", "google.rpc.Status"]:
            assert name.rsplit(".", 1)[1] in [m.name for m in database.FindFileContainingSymbol(name).message_type], name

    def topic(self):
        settings = admin_pb2.TopicSettings(
            schedule=queue_pb2.RetrySchedule(tiers=[seconds(0.2), seconds(0.3)]), min_redelivery_gap=seconds(0)
        )
        topic = self.call(self.admin, "CreateTopic", name=TOPIC, settings=settings).topic
        assert topic.name == TOPIC and not topic.paused
        assert [tier.ToMilliseconds() for tier in topic.settings.schedule.tiers] == [200, 300]
        assert topic.settings.lease.ToSeconds() == 30, "an unset field takes its default"
        assert topic.settings.HasField("history_count") and topic.settings.history_count == 100_000
        taken = self.refused(self.admin, "CreateTopic", name=TOPIC).must_be("ALREADY_EXISTS", "TOPIC_EXISTS")
        assert taken.metadata["topic"] == TOPIC
        bad = self.refused(self.admin, "CreateTopic", name="no spaces").must_be("INVALID_ARGUMENT", "INVALID_FIELD")
        assert bad.fields == ["name"], bad.fields
        self.refused(self.admin, "GetTopic", name="no-such-topic").must_be("NOT_FOUND", "TOPIC_NOT_FOUND")
        assert self.call(self.admin, "GetTopic", name=TOPIC).topic == topic
        for n in range(3):
            self.call(self.admin, "CreateTopic", name=f"page-py-{n}")
        names, token = [], ""
        while True:
            page = self.call(self.admin, "ListTopics", page_size=2, page_token=token)
            names += [topic.name for topic in page.topics]
            token = page.next_page_token
            if not token:
                break
        assert [name for name in names if name.endswith("-py") or "-py-" in name] == [TOPIC] + [f"page-py-{n}" for n in range(3)]
        bad = self.refused(self.admin, "ListTopics", page_token="made-up").must_be("INVALID_ARGUMENT", "INVALID_FIELD")
        assert bad.fields == ["page_token"]

    def update(self):
        settings = admin_pb2.TopicSettings(max_attempts=3, lease=seconds(20))
        mask = FieldMask(paths=["max_attempts"])
        topic = self.call(self.admin, "UpdateTopic", name=TOPIC, settings=settings, update_mask=mask).topic
        assert (topic.settings.max_attempts, topic.settings.lease.ToSeconds()) == (3, 30), "only what the mask names"
        mask = FieldMask(paths=["no_such_field"])
        bad = self.refused(self.admin, "UpdateTopic", name=TOPIC, settings=settings, update_mask=mask)
        bad.must_be("INVALID_ARGUMENT", "INVALID_FIELD")
        assert bad.fields[0].startswith("update_mask"), bad.fields

    def produce_once(self):
        order = {"key": "P-1", "dedup_id": "P-1", "body": b'{"amount":1999}', "headers": {"channel": "bank"}}
        first = self.stored(**order, delay=seconds(3600))
        assert not first.existing and len(first.id) <= 64
        again = self.stored(**order, delay=seconds(3600))
        assert again.existing and (again.id, again.due_at) == (first.id, first.due_at)
        # Four messages, each with its own answer; the bad ones do not harm the good one.
        other, taken, bad, good = self.produce(
            queue_pb2.NewMessage(dedup_id="P-1", body=b"other"),
            queue_pb2.NewMessage(key="P-1"),
            queue_pb2.NewMessage(key="k" * 257),
            queue_pb2.NewMessage(key="P-2", delay=seconds(3600)),
        )
        other = Refusal(other.error).must_be("FAILED_PRECONDITION", "DEDUP_ID_REUSED")
        assert other.metadata["first"] == first.id
        taken = Refusal(taken.error).must_be("ALREADY_EXISTS", "KEY_IN_USE")
        assert (taken.metadata["holder"], taken.metadata["dead"]) == (first.id, "false")
        bad = Refusal(bad.error).must_be("INVALID_ARGUMENT", "INVALID_FIELD")
        assert bad.fields == ["messages[2].key"], bad.fields
        assert good.WhichOneof("result") == "produced"
        kept = self.stored(key="P-1", key_policy=queue_pb2.KEY_POLICY_KEEP)
        assert kept.existing and kept.id == first.id
        self.refused(self.queue, "Produce", topic=TOPIC).must_be("INVALID_ARGUMENT", "INVALID_FIELD")
        try:
            self.produce(queue_pb2.NewMessage(body=bytes(17 * 1024 * 1024)))
            raise AssertionError("a request over 16 MiB was taken")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.OUT_OF_RANGE, error
        shown = self.show("P-1")
        assert (shown.body, dict(shown.headers)) == (order["body"], order["headers"])
        assert shown.state == queue_pb2.MESSAGE_STATE_SCHEDULED and "due in" in shown.why, shown.why
        assert shown.due_at == first.due_at

    def produce_stream(self):
        self.called.add("ProduceStream")
        frames = [
            queue_pb2.ProduceStreamRequest(
                topic=TOPIC, messages=[queue_pb2.NewMessage(key=f"S-{frame}{n}", delay=seconds(3600)) for n in range(2)]
            )
            for frame in range(3)
        ]
        answers = list(self.queue.ProduceStream(iter(frames), timeout=HANGS))
        assert [len(answer.results) for answer in answers] == [2, 2, 2]
        ids = [result.produced.id for answer in answers for result in answer.results]
        shown = [self.show(f"S-{frame}{n}").id for frame in range(3) for n in range(2)]
        assert ids == shown, "answers come in the order of the requests"

    def consume_stream(self):
        """Deliveries by push; an ack, a nack and an extension in one frame, answered in this order."""
        self.called.add("Consume")
        for key in ["C-ack", "C-nack", "C-extend"]:
            self.stored(key=key, delay=seconds(0))
        frames = threads.SimpleQueue()
        answers = self.queue.Consume(iter(frames.get, None), timeout=HANGS)
        window = queue_pb2.TopicWindow(topic=TOPIC, window=10)
        frames.put(queue_pb2.ConsumeRequest(start=queue_pb2.ConsumeStart(consumer="tour-stream", topics=[window])))
        held = {}
        while len(held) < 3:
            for delivery in next(answers).deliveries:
                held[delivery.key] = delivery
                assert delivery.delivered_at.ToNanoseconds() >= delivery.due_at.ToNanoseconds(), "nothing comes early"
                assert delivery.attempt == 1 and delivery.delivery == 1 and not delivery.redelivered
        assert self.show("C-ack").consumer == "tour-stream"
        frames.put(
            queue_pb2.ConsumeRequest(
                settlements=queue_pb2.Settlements(
                    extends=[queue_pb2.ExtendItem(receipt=held["C-extend"].receipt, lease=seconds(600))],
                    nacks=[queue_pb2.NackItem(receipt=held["C-nack"].receipt, reason=queue_pb2.NACK_REASON_NOT_YET)],
                    acks=[held["C-ack"].receipt],
                )
            )
        )
        settled, again = None, None
        while settled is None or again is None:
            answer = next(answers)
            settled = answer.settled[0] if answer.settled else settled
            again = answer.deliveries[0] if answer.deliveries else again
        assert [result.WhichOneof("result") for result in settled.results] == ["acked", "nacked", "extended"], settled
        longer = settled.results[2].extended.lease_deadline
        assert longer.ToSeconds() - held["C-extend"].lease_deadline.ToSeconds() > 500
        assert (again.key, again.attempt, again.delivery) == ("C-nack", 2, 2)
        # A stream that ends gives back what it holds, and no attempt is spent.
        frames.put(None)
        assert not [answer for answer in answers if answer.deliveries]
        for _ in range(2):
            back = self.fetch_one()
            assert back.attempt == {"C-nack": 2, "C-extend": 1}[back.key], back
            assert self.ack(back.receipt)[0].WhichOneof("result") == "acked"

    def settle(self):
        """Fetch, extend, ack and nack by call, and receipts that are worth nothing."""
        assert not self.call(self.queue, "Fetch", topic=TOPIC, wait=seconds(0.05)).deliveries
        self.stored(key="F-1", delay=seconds(0))
        held = self.fetch_one(lease=seconds(5))
        item = queue_pb2.ExtendItem(receipt=held.receipt, lease=seconds(60))
        (extended,) = self.call(self.queue, "Extend", extends=[item]).results
        assert extended.extended.lease_deadline.ToSeconds() - held.lease_deadline.ToSeconds() > 50
        nacked = self.nack(held.receipt, queue_pb2.NACK_REASON_FAILED, delay=seconds(0), text="502 from the bank").nacked
        assert not nacked.dead and nacked.HasField("due_at")
        stale = Refusal(self.ack(held.receipt)[0].error).must_be("FAILED_PRECONDITION", "LEASE_LOST")
        assert stale.metadata["state"] in ["scheduled", "ready"], stale.metadata
        again = self.fetch_one()
        assert (again.key, again.attempt, again.delivery) == ("F-1", 1, 2), "a failure does not spend the attempt"
        (entry,) = self.show("F-1").history
        assert (entry.text, entry.outcome) == ("502 from the bank", queue_pb2.DELIVERY_OUTCOME_FAILED)
        first, forged, repeated = self.ack(again.receipt, b"made up", again.receipt)
        assert not first.acked.repeated and repeated.acked.repeated
        bad = Refusal(forged.error).must_be("INVALID_ARGUMENT", "RECEIPT_INVALID")
        assert bad.fields == ["receipts[1]"], bad.fields
        bad = Refusal(self.nack(again.receipt, queue_pb2.NACK_REASON_UNSPECIFIED).error)
        assert bad.must_be("INVALID_ARGUMENT", "INVALID_FIELD").fields == ["nacks[0].reason"], bad.fields

    def cancel_and_reschedule(self):
        self.stored(key="X-1", delay=seconds(3600))
        assert self.cancel("X-1").status == queue_pb2.CANCEL_STATUS_CANCELLED
        assert self.cancel("X-1").status == queue_pb2.CANCEL_STATUS_CANCELLED, "the same answer again"
        assert self.cancel("F-1").status == queue_pb2.CANCEL_STATUS_ALREADY_DONE
        assert self.cancel("F-1").outcome == queue_pb2.OUTCOME_ACKED
        assert self.cancel("never-seen").status == queue_pb2.CANCEL_STATUS_NOT_FOUND
        shown = self.show("X-1")
        assert (shown.state, shown.outcome) == (queue_pb2.MESSAGE_STATE_DONE, queue_pb2.OUTCOME_CANCELLED)
        self.refused(self.queue, "GetMessage", topic=TOPIC, message=by_key("never-seen")).must_be(
            "NOT_FOUND", "MESSAGE_NOT_FOUND"
        )

        produced = self.stored(key="X-2", delay=seconds(3600))
        later = Timestamp(seconds=produced.due_at.seconds + 3600)
        moved = self.call(self.queue, "Reschedule", topic=TOPIC, message=by_key("X-2"), due_at=later)
        assert moved.status == queue_pb2.RESCHEDULE_STATUS_RESCHEDULED and moved.due_at == later
        by_id = queue_pb2.MessageRef(id=produced.id)
        self.call(self.queue, "Reschedule", topic=TOPIC, message=by_id, delay=seconds(0))
        held = self.fetch_one()
        assert held.key == "X-2" and held.attempt == 1
        moved = self.call(self.queue, "Reschedule", topic=TOPIC, message=by_id, delay=seconds(0))
        assert moved.status == queue_pb2.RESCHEDULE_STATUS_IN_FLIGHT
        assert self.cancel("X-2", when_lease_ends=True).status == queue_pb2.CANCEL_STATUS_IN_FLIGHT
        assert self.show("X-2").cancel_when_lease_ends
        assert self.nack(held.receipt, queue_pb2.NACK_REASON_NOT_YET).nacked.cancelled

    def dead_letters(self):
        """Every attempt is spent; the message is dead, is redriven, and is dead again because a consumer gave up."""
        produced = self.stored(key="D-1", schedule=queue_pb2.RetrySchedule(tiers=[seconds(0.05)] * 2), max_attempts=2)
        assert not self.nack(self.fetch_one().receipt, queue_pb2.NACK_REASON_NOT_YET, text="processing").nacked.dead
        assert self.nack(self.fetch_one().receipt, queue_pb2.NACK_REASON_NOT_YET).nacked.dead
        (dead,) = self.call(self.admin, "ListDeadLetters", topic=TOPIC).messages
        assert (dead.id, dead.dead_reason) == (produced.id, queue_pb2.DEAD_REASON_MAX_ATTEMPTS)
        assert [entry.text for entry in dead.history] == ["processing", ""]
        assert self.cancel("D-1").dead
        self.redrive(produced.id, "REDRIVEN")
        self.redrive(produced.id, "NOT_DEAD")
        held = self.fetch_one()
        assert (held.key, held.attempt, held.delivery) == ("D-1", 1, 3), "all its attempts, but no delivery twice"
        assert self.nack(held.receipt, queue_pb2.NACK_REASON_DEAD, text="ask a person").nacked.dead
        shown = self.show("D-1")
        assert (shown.dead_reason, shown.redrives) == (queue_pb2.DEAD_REASON_CONSUMER, 1)
        self.redrive(produced.id, "REDRIVEN")
        self.ack(self.fetch_one().receipt)
        assert self.show("D-1").state == queue_pb2.MESSAGE_STATE_DONE

    def redrive(self, message, status):
        answers = self.answers(self.admin, "RedriveDeadLetters", topic=TOPIC, ids=[message])
        (result,) = [result for answer in answers for result in answer.results]
        names = answers[0].DESCRIPTOR.fields_by_name["results"].enum_type.values_by_number
        assert names[result].name == "REDRIVE_STATUS_" + status

    def pause(self):
        assert self.call(self.admin, "PauseTopic", name=TOPIC).topic.paused
        self.stored(key="H-1", delay=seconds(0))
        assert not self.call(self.queue, "Fetch", topic=TOPIC, wait=seconds(0.1)).deliveries
        assert "paused" in self.show("H-1").why
        assert not self.call(self.admin, "ResumeTopic", name=TOPIC).topic.paused
        self.ack(self.fetch_one().receipt)

    def stats(self):
        answer = self.call(self.admin, "GetStats", topic=TOPIC)
        (topic,) = answer.topics
        places = topic.scheduled + topic.ready + topic.leased + topic.dead
        assert topic.produced == places + topic.acked + topic.cancelled + topic.replaced + topic.purged + topic.quarantined
        assert (topic.scheduled, topic.ready, topic.leased, topic.dead) == (8, 0, 0, 0), topic
        assert topic.lateness.count == topic.deliveries > 0
        assert answer.broker.epoch > 0 and answer.broker.commits > 0

    def deadline(self):
        """A deadline of the client ends a call that waits, and costs no message."""
        try:
            self.queue.Fetch(queue_pb2.FetchRequest(topic=TOPIC, wait=seconds(20)), timeout=0.2)
            raise AssertionError("nothing was there to be fetched")
        except grpc.RpcError as error:
            # The broker ends such a call too, and may be the first of the two.
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
        self.stored(key="L-1", delay=seconds(0))
        self.ack(self.fetch_one().receipt)

    def list_messages(self):
        """All messages that wait, page by page, in the order in which they are due."""
        query = {"topic": TOPIC, "state": queue_pb2.MESSAGE_STATE_SCHEDULED, "page_size": 3}
        messages, token = [], ""
        while True:
            page = self.call(self.admin, "ListMessages", page_token=token, **query)
            assert len(page.messages) <= 3
            messages += page.messages
            token = page.next_page_token or token
            if not page.next_page_token:
                break
        assert len(messages) == 8 and {m.key for m in messages} >= {"P-1", "P-2", "S-00"}, messages
        due = [message.due_at.ToNanoseconds() for message in messages]
        assert due == sorted(due) and all("due in" in message.why for message in messages)
        (one,) = self.call(self.admin, "ListMessages", topic=TOPIC, key="P-1").messages
        assert one.id == self.show("P-1").id and not one.body
        other = self.refused(self.admin, "ListMessages", page_token=token, topic=TOPIC)
        assert other.must_be("INVALID_ARGUMENT", "INVALID_FIELD").fields == ["page_token"]

    def jobs(self):
        """Dead letters by filter: a dry run changes nothing, a limit holds, an export is whole, a purge is for good."""
        self.call(self.admin, "CreateTopic", name=JOBS)
        messages = [queue_pb2.NewMessage(key=f"J-{n}", body=b"%d" % n, delay=seconds(0)) for n in range(4)]
        assert all(result.WhichOneof("result") == "produced" for result in self.produce(*messages, topic=JOBS))
        held = self.call(self.queue, "Fetch", topic=JOBS, wait=seconds(20), max_messages=4).deliveries
        while len(held) < 4:
            held.extend(self.call(self.queue, "Fetch", topic=JOBS, wait=seconds(20), max_messages=4).deliveries)
        for delivery in held:
            text = "timeout" if delivery.key < "J-3" else "unknown order"
            assert self.nack(delivery.receipt, queue_pb2.NACK_REASON_DEAD, text=text).nacked.dead

        exported = [m for answer in self.answers(self.admin, "ExportDeadLetters", topic=JOBS) for m in answer.messages]
        assert {m.key: m.body for m in exported} == {f"J-{n}": b"%d" % n for n in range(4)}, "bodies are exported too"
        assert all(m.history[-1].outcome == queue_pb2.DELIVERY_OUTCOME_DEAD for m in exported)

        timeouts = {"topic": JOBS, "filter": dead_pb2.DeadLetterFilter(error_text="timeout")}
        (dry,) = self.answers(self.admin, "RedriveDeadLetters", dry_run=True, **timeouts)
        assert (dry.matched, dry.redriven) == (3, 0), dry
        assert self.dead(JOBS) == 4, "a dry run changes nothing"
        last = self.answers(self.admin, "RedriveDeadLetters", limit=2, **timeouts)[-1]
        assert (last.redriven, last.remaining) == (2, 0), last
        assert self.dead(JOBS) == 2

        everything = {"topic": JOBS, "filter": dead_pb2.DeadLetterFilter(reason=queue_pb2.DEAD_REASON_CONSUMER)}
        (dry,) = self.answers(self.admin, "PurgeDeadLetters", dry_run=True, **everything)
        assert (dry.matched, dry.purged) == (2, 0) and self.dead(JOBS) == 2, dry
        last = self.answers(self.admin, "PurgeDeadLetters", rate_per_second=10_000, **everything)[-1]
        assert (last.purged, last.remaining) == (2, 0) and self.dead(JOBS) == 0, last
        bad = self.refused(self.admin, "PurgeDeadLetters", topic=JOBS)
        assert bad.must_be("INVALID_ARGUMENT", "INVALID_FIELD").fields == ["ids"]

    def dead(self, name):
        (topic,) = self.call(self.admin, "GetStats", topic=name).topics
        return topic.dead

    def broker(self):
        broker = self.call(self.admin, "GetBroker").broker
        assert broker.version and broker.limits.max_body_bytes == 256 * 1024, broker
        assert broker.epoch == self.call(self.admin, "GetStats").broker.epoch

    def clock(self):
        """A clock that is in step is adopted as it is; an offset that nobody has seen is not."""
        changed = self.refused(self.admin, "AdoptClock", expected_offset=seconds(7_200))
        assert abs(int(changed.must_be("FAILED_PRECONDITION", "CLOCK_OFFSET_CHANGED").metadata["offset_ms"])) < 1_000
        adopted = self.call(self.admin, "AdoptClock", expected_offset=seconds(0))
        assert adopted.after.now.ToNanoseconds() >= adopted.before.now.ToNanoseconds(), "the clock never goes back"

    def backup(self):
        """A header, chunks, a trailer that counts what came."""
        header, *chunks, trailer = self.answers(self.admin, "Backup")
        assert header.WhichOneof("item") == "header" and trailer.WhichOneof("item") == "trailer"
        assert all(chunk.WhichOneof("item") == "chunk" for chunk in chunks)
        data = b"".join(chunk.chunk.data for chunk in chunks)
        assert len(data) == trailer.trailer.bytes > 0
        assert int.from_bytes(data[-4:], "little") == trailer.trailer.checksum
        stats = self.call(self.admin, "GetStats").topics
        waiting = sum(topic.scheduled + topic.ready + topic.leased for topic in stats)
        assert (trailer.trailer.topics, trailer.trailer.waiting, trailer.trailer.dead) == (len(stats), waiting, 0), trailer
        assert header.header.live_messages == waiting

    def delete(self):
        """A topic with messages goes only if that was said, and then its name is free."""
        counts = self.refused(self.admin, "DeleteTopic", name=JOBS).must_be("FAILED_PRECONDITION", "TOPIC_NOT_EMPTY")
        assert (counts.metadata["waiting"], counts.metadata["dead"]) == ("2", "0"), counts.metadata
        *_, last = self.answers(self.admin, "DeleteTopic", name=JOBS, purge=True)
        assert (last.messages, last.pages_left, last.reclaimed) == (2, 0, True), last
        self.refused(self.admin, "GetTopic", name=JOBS).must_be("NOT_FOUND", "TOPIC_NOT_FOUND")
        self.call(self.admin, "CreateTopic", name=JOBS)
        (last,) = self.answers(self.admin, "DeleteTopic", name=JOBS)
        assert (last.messages, last.reclaimed) == (0, True), "an empty topic goes at once"

    STEPS = [
        health,
        reflection,
        topic,
        update,
        produce_once,
        produce_stream,
        consume_stream,
        settle,
        cancel_and_reschedule,
        dead_letters,
        pause,
        stats,
        list_messages,
        jobs,
        broker,
        clock,
        backup,
        delete,
        deadline,
    ]


def by_key(key):
    return queue_pb2.MessageRef(key=key)


def main(address):
    with grpc.insecure_channel(address) as channel:
        tour = Tour(channel)
        for step in Tour.STEPS:
            step(tour)
            print("ok", step.__name__)
        missing = [name for name in tour.methods if name not in tour.called]
        assert not missing, f"the tour does not call {', '.join(missing)}"
        print("ok", len(tour.methods), "methods")


if __name__ == "__main__":
    main(sys.argv[1])
