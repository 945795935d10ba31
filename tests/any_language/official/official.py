"""The official CloudEvents SDK for Python, on every broker, both ways.

    official.py send    BROKER URL TOPIC MODE    sends awkward events, and prints what a receiver should find of each
    official.py receive BROKER URL TOPIC COUNT   reads so many events, and prints what the SDK finds in each

One JSON object a line. BROKER is kafka, rabbitmq, amqp (RabbitMQ by the binding of AMQP) or redis; MODE is binary or structured.
"""

import json
import sys
import time
from datetime import datetime, timedelta, timezone

from cloudevents.core.bindings import amqp, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

PATIENCE = 60
UTC = timezone.utc
FORMAT = JSONFormat()
FIELDS = ("specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "subject", "partitionkey")
NOW = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)


def awkward():
    """Attributes and data of events that are allowed, and rare."""
    json_type, day = {"datacontenttype": "application/json"}, timedelta(days=1)
    return [
        (json_type, {"total": 1.0, "text": "Zoë \U0001f600", "list": [None, True]}),
        ({}, {"without": "a content type"}),
        ({}, None),
        (json_type, None),
        ({"datacontenttype": "text/plain; charset=utf-8"}, "two\nlines"),
        ({"datacontenttype": "application/octet-stream"}, bytes(range(256))),
        ({"datacontenttype": "application/vnd.example+json"}, {"a": {"b": []}}),
        ({"subject": "s" * 300}, {"n": 1}),
        ({"subject": "строка/1"}, {"n": 1}),
        ({"dataschema": "https://example.com/schema#1"}, {"n": 1}),
        ({"partitionkey": "order-1", "subject": "line-1"}, {"n": 1}),
        ({"tenantid": "Ünïcode \U0001f600", "empty1": "x"}, {"n": 1}),
        ({"number": 42, "isurgent": True}, {"n": 1}),
        ({"lines": "two\nlines"}, {"n": 1}),
        ({"long": "x" * 10_000}, {"n": 1}),
        ({"schemaversion": "1.2.0"}, {"n": 1}),
        ({"sequence": "first"}, {"n": 1}),
        ({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, {"n": 1}),
        ({"time": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}, {"n": 1}),
        ({"time": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}, {"n": 1}),
        ({"time": datetime(2023, 11, 15, 3, 43, 20, tzinfo=timezone(timedelta(hours=5, minutes=30)))}, {"n": 1}),
        ({"time": datetime(9999, 12, 31, tzinfo=UTC) - day}, {"n": 1}),
        ({"source": "urn:example:Zoë", "type": "Zoë.placed"}, {"n": 1}),
    ]


def micros(instant):
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def text_of(value, broker, mode):
    if isinstance(value, bool) and (mode == "structured" or broker == "amqp"):
        return str(value).lower()
    return str(value).replace("\n", "\\n")[:8192]


def expected(event, broker, mode):
    attributes = event.get_attributes()
    data, content_type = event.get_data(), attributes.get("datacontenttype")
    if mode == "structured" and data is not None:
        content_type = content_type or "application/json"
    extensions = {
        name: text_of(value, broker, mode)
        for name, value in attributes.items()
        if name not in FIELDS and name not in ("schemaversion", "sequence")
    }
    key = attributes.get("partitionkey") or attributes.get("subject")
    return {
        "id": event.get_id(),
        "source": event.get_source(),
        "type": event.get_type(),
        "time": micros(event.get_time()),
        "content_type": content_type or "application/octet-stream",
        "subject": event.get_subject(),
        "dataschema": event.get_dataschema(),
        "extensions": extensions,
        "key": None if key and len(key) > 255 else key,
        "traceparent": attributes.get("traceparent"),
        "payload": FORMAT.write_data(data, content_type).hex(),
    }


def send(broker, url, topic, mode):
    events = []
    for number, (attributes, data) in enumerate(awkward()):
        given = {"id": f"{broker}/{mode}/{number} é", "source": "/official", "type": "order.placed", "time": NOW}
        events.append(CloudEvent({**given, **attributes}, data))
    binding = {"kafka": kafka, "rabbitmq": rabbitmq, "amqp": amqp, "redis": rabbitmq}[broker]
    write = binding.to_structured if mode == "structured" else binding.to_binary
    messages = [write(event, FORMAT) for event in events]
    {"kafka": to_kafka, "rabbitmq": to_rabbitmq, "amqp": to_rabbitmq, "redis": to_redis}[broker](url, topic, messages)
    for event in events:
        print(json.dumps(expected(event, broker, mode)))


def to_kafka(url, topic, messages):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": url})
    for message in messages:
        producer.produce(topic, message.value, message.key, headers=list(message.headers.items()))
    assert producer.flush(PATIENCE) == 0


def to_rabbitmq(url, topic, messages):
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for message in messages:
        if isinstance(message, amqp.AMQPMessage):
            headers, body = message.application_properties, message.application_data
            content_type = message.properties.get("content-type")
        else:
            headers, body, content_type = message.headers, message.body, message.content_type
        properties = pika.BasicProperties(headers=headers, content_type=content_type, delivery_mode=2)
        retried(lambda: channel.basic_publish("outbox", f"{topic}.0", body, properties, mandatory=True))
    connection.close()


def retried(publish):
    """The queue may not be there yet."""
    import pika

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return publish()
        except pika.exceptions.UnroutableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def to_redis(url, topic, messages):
    import redis

    client = redis.Redis.from_url(url)
    for message in messages:
        fields = {"data": message.body, **message.headers}
        if message.content_type is not None:
            fields["content-type"] = message.content_type
        client.xadd(f"outbox:{{{topic}:0}}", fields)


def receive(broker, url, topic, count):
    read = {"kafka": from_kafka, "amqp": from_rabbitmq, "redis": from_redis}[broker]
    for event in read(url, topic, int(count)):
        found = {name: str(value) for name, value in event.get_attributes().items()}
        found["time"] = micros(event.get_time())
        data = event.get_data()
        found["data"] = {"hex": data.hex()} if isinstance(data, bytes) else data
        print(json.dumps(found))


def from_kafka(url, topic, count):
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": url, "group.id": f"official-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE
    while count and time.monotonic() < deadline:
        record = consumer.poll(1)
        if record is not None and record.error() is None:
            count -= 1
            yield kafka.from_kafka(kafka.KafkaMessage(dict(record.headers()), record.key(), record.value()), FORMAT)
    consumer.close()


def from_rabbitmq(url, topic, count):
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    found = []

    def take(_channel, _method, properties, body):
        given = {} if properties.content_type is None else {"content-type": properties.content_type}
        found.append(amqp.from_amqp(amqp.AMQPMessage(given, properties.headers, body), FORMAT))

    for number in range(4):
        channel.basic_consume(f"{topic}:{topic}.{number}", take, auto_ack=True)
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        connection.process_data_events(time_limit=1)
    connection.close()
    return found


def from_redis(url, topic, _count):
    import redis

    client = redis.Redis.from_url(url)
    for number in range(4):
        for _, fields in client.xrange(f"outbox:{{{topic}:{number}}}"):
            body, content_type = fields.pop(b"data"), fields.pop(b"content-type", None)
            headers = {name.decode(): value.decode() for name, value in fields.items()}
            content_type = content_type and content_type.decode()
            yield rabbitmq.from_rabbitmq(rabbitmq.RabbitMQMessage(headers, content_type, body), FORMAT)


{"send": send, "receive": receive}[sys.argv[1]](*sys.argv[2:])
