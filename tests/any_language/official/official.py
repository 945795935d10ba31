"""The official CloudEvents SDK for Python, on every broker, both ways.

    official.py send    BROKER URL TOPIC MODE FILE    sends the events of a file
    official.py receive BROKER URL TOPIC COUNT        reads so many events, and prints what the SDK finds in each

BROKER is kafka, rabbitmq, amqp (RabbitMQ by the binding of AMQP) or redis; MODE is binary or structured. One JSON object a line is
printed: of each event the SDK does not make, `refused`; of each record it does not read, `unread`; of each that it reads, its attributes and data.
"""

import json
import sys
import time
from datetime import datetime, timedelta, timezone

from cloudevents.core.bindings import amqp, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

PATIENCE = 60
UNITS = 4
FORMAT = JSONFormat()


def say(**what):
    print(json.dumps(what))


def event_of(given):
    attributes, data = dict(given["attributes"]), given.get("data", {})
    attributes["time"] = datetime.fromisoformat(attributes["time"].replace("Z", "+00:00"))
    if "hex" in data:
        return CloudEvent(attributes, bytes.fromhex(data["hex"]))
    return CloudEvent(attributes, data.get("json", data.get("text")))


def send(broker, url, topic, mode, file):
    binding = {"kafka": kafka, "rabbitmq": rabbitmq, "amqp": amqp, "redis": rabbitmq}[broker]
    write = binding.to_structured if mode == "structured" else binding.to_binary
    messages = []
    for given in json.load(open(file)):
        try:
            messages.append(write(event_of(given), FORMAT))
        except Exception as error:
            say(id=given["attributes"]["id"], refused=str(error))
    {"kafka": to_kafka, "rabbitmq": to_rabbitmq, "amqp": to_rabbitmq, "redis": to_redis}[broker](url, topic, messages)


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
        channel.basic_publish("outbox", f"{topic}.0", body, properties, mandatory=True)
    connection.close()


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
    for identity, to_event in read(url, topic, int(count)):
        try:
            event = to_event()
        except Exception as error:
            say(id=identity, unread=str(error))
            continue
        found = {name: str(value) for name, value in event.get_attributes().items()}
        found["time"] = (event.get_time() - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
        data = event.get_data()
        found["data"] = {"hex": data.hex()} if isinstance(data, bytes) else data
        say(**found)


def from_kafka(url, topic, count):
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": url, "group.id": f"python-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE
    while count and time.monotonic() < deadline:
        record = consumer.poll(1)
        if record is not None and record.error() is None:
            count -= 1
            headers = dict(record.headers())
            message = kafka.KafkaMessage(headers, record.key(), record.value())
            yield headers["ce_id"].decode(), lambda: kafka.from_kafka(message, FORMAT)
    consumer.close()


def from_rabbitmq(url, topic, count):
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    found = []

    def take(_channel, _method, properties, body):
        given = {} if properties.content_type is None else {"content-type": properties.content_type}
        message = amqp.AMQPMessage(given, properties.headers, body)
        found.append((properties.message_id, lambda: amqp.from_amqp(message, FORMAT)))

    for number in range(UNITS):
        channel.basic_consume(f"{topic}:{topic}.{number}", take, auto_ack=True)
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        connection.process_data_events(time_limit=1)
    connection.close()
    return found


def from_redis(url, topic, _count):
    import redis

    client = redis.Redis.from_url(url)
    for number in range(UNITS):
        for _, fields in client.xrange(f"outbox:{{{topic}:{number}}}"):
            body, content_type = fields.pop(b"data"), fields.pop(b"content-type", None)
            headers = {name.decode(): value.decode() for name, value in fields.items()}
            message = rabbitmq.RabbitMQMessage(headers, content_type and content_type.decode(), body)
            yield headers["ce-id"], lambda: rabbitmq.from_rabbitmq(message, FORMAT)


{"send": send, "receive": receive}[sys.argv[1]](*sys.argv[2:])
