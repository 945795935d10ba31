// The official CloudEvents SDK for JavaScript, on every broker, both ways. As official.py, with these brokers: kafka, by the SDK's
// binding; rabbitmq and redis, for which it has none, by its binding of HTTP, whose messages are headers and a body.
"use strict";

const { CloudEvent, HTTP, Kafka } = require("cloudevents");
const fs = require("node:fs");

const PATIENCE = 60_000;
const UNITS = [0, 1, 2, 3];

const say = (what) => console.log(JSON.stringify(what));

function eventOf({ attributes, data = {} }) {
  const given = data.hex === undefined ? data.json ?? data.text : Buffer.from(data.hex, "hex");
  return new CloudEvent({ ...attributes, data: given });
}

// What clients of brokers take: texts and bytes.
function texts(headers) {
  const given = Object.entries(headers).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given.map(([name, value]) => [name, String(value)]));
}

function bytes(body) {
  if (body === undefined || body === null) return undefined;
  return typeof body === "string" || ArrayBuffer.isView(body) ? Buffer.from(body) : Buffer.from(JSON.stringify(body));
}

async function send(broker, url, topic, mode, file) {
  const messages = [];
  for (const given of JSON.parse(fs.readFileSync(file))) {
    try {
      messages.push((broker === "kafka" ? Kafka : HTTP)[mode](eventOf(given)));
    } catch (error) {
      say({ id: given.attributes.id, refused: error.message });
    }
  }
  await { kafka: toKafka, rabbitmq: toRabbitMq, redis: toRedis }[broker](url, topic, messages);
}

function kafkaClient(url) {
  const { Kafka: Client, logLevel } = require("kafkajs");
  return new Client({ brokers: [url], logLevel: logLevel.NOTHING });
}

async function toKafka(url, topic, messages) {
  const producer = kafkaClient(url).producer();
  await producer.connect();
  // Without the record's timestamp, which the SDK takes from `time`: a broker refuses one that is far from today.
  const records = messages.map(({ key, value, headers }) => ({ key, value: bytes(value) ?? null, headers: texts(headers) }));
  await producer.send({ topic, messages: records });
  await producer.disconnect();
}

async function toRabbitMq(url, topic, messages) {
  const connection = await require("amqplib").connect(url);
  const channel = await connection.createConfirmChannel();
  for (const { headers, body } of messages) {
    const { "content-type": contentType, ...rest } = texts(headers);
    channel.publish("outbox", `${topic}.0`, bytes(body) ?? Buffer.alloc(0), { contentType, headers: rest, persistent: true });
  }
  await channel.waitForConfirms();
  await connection.close();
}

async function toRedis(url, topic, messages) {
  const client = await require("redis").createClient({ url }).connect();
  for (const { headers, body } of messages) {
    await client.xAdd(`outbox:{${topic}:0}`, "*", { data: bytes(body) ?? Buffer.alloc(0), ...texts(headers) });
  }
  await client.close();
}

function take(id, read) {
  let event;
  try {
    event = read();
  } catch (error) {
    return say({ id, unread: error.message });
  }
  const { data, data_base64, time, ...attributes } = event;
  const given = Object.entries(attributes).filter(([, value]) => value !== undefined && value !== null);
  const found = Object.fromEntries(given.map(([name, value]) => [name, String(value)]));
  say({ ...found, time: Date.parse(time) * 1_000, data: ArrayBuffer.isView(data) ? { hex: Buffer.from(data).toString("hex") } : data ?? null });
}

async function receive(broker, url, topic, count) {
  await { kafka: fromKafka, rabbitmq: fromRabbitMq, redis: fromRedis }[broker](url, topic, Number(count));
}

/// Waits until so many have come.
function counted(count) {
  let came;
  const all = new Promise((resolve) => (came = resolve));
  const timer = setTimeout(came, PATIENCE);
  return [() => --count || came(), all.then(() => clearTimeout(timer))];
}

async function fromKafka(url, topic, count) {
  const consumer = kafkaClient(url).consumer({ groupId: `node-${topic}` });
  const [came, all] = counted(count);
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      const headers = Object.fromEntries(Object.entries(message.headers).map(([name, value]) => [name, value.toString()]));
      take(headers.ce_id, () => Kafka.toEvent({ key: message.key?.toString(), value: message.value, headers }));
      came();
    },
  });
  await all;
  await consumer.disconnect();
}

async function fromRabbitMq(url, topic, count) {
  const connection = await require("amqplib").connect(url);
  const channel = await connection.createChannel();
  const [came, all] = counted(count);
  for (const unit of UNITS) {
    await channel.consume(`${topic}:${topic}.${unit}`, ({ content, properties }) => {
      const named = Object.entries(properties.headers).map(([name, value]) => [name.replace(/^cloudEvents:/, "ce-"), value]);
      fromHttp(properties.contentType, named, content);
      came();
    }, { noAck: true });
  }
  await all;
  await connection.close();
}

// A body of bytes is data of the type `Buffer`: what is text is handed over as text.
function fromHttp(contentType, named, body) {
  const headers = Object.fromEntries(named);
  if (contentType !== undefined) headers["content-type"] = contentType;
  const isText = /json|^text\//.test(contentType);
  take(headers["ce-id"], () => HTTP.toEvent({ headers, body: isText ? body.toString() : body.length ? body : undefined }));
}

async function fromRedis(url, topic) {
  const { createClient, RESP_TYPES } = require("redis");
  const client = (await createClient({ url }).connect()).withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  for (const unit of UNITS) {
    for (const { message } of await client.xRange(`outbox:{${topic}:${unit}}`, "-", "+")) {
      const { data, "content-type": contentType, ...rest } = message;
      fromHttp(contentType?.toString(), Object.entries(rest).map(([name, value]) => [name, value.toString()]), data);
    }
  }
  await client.close();
}

({ send, receive })[process.argv[2]](...process.argv.slice(3)).catch((error) => {
  console.error(error);
  process.exit(1);
});
