import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.ConnectionFactory;
import io.cloudevents.CloudEvent;
import io.cloudevents.CloudEventData;
import io.cloudevents.SpecVersion;
import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.core.data.BytesCloudEventData;
import io.cloudevents.core.format.EventFormat;
import io.cloudevents.core.message.Encoding;
import io.cloudevents.core.message.MessageReader;
import io.cloudevents.core.message.MessageWriter;
import io.cloudevents.core.message.impl.BaseGenericBinaryMessageReaderImpl;
import io.cloudevents.core.message.impl.GenericStructuredMessageReader;
import io.cloudevents.core.message.impl.MessageUtils;
import io.cloudevents.jackson.JsonFormat;
import io.cloudevents.kafka.CloudEventSerializer;
import io.cloudevents.kafka.KafkaMessageFactory;
import io.cloudevents.kafka.PartitionKeyExtensionInterceptor;
import io.cloudevents.rw.CloudEventWriter;
import java.io.File;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import redis.clients.jedis.Jedis;

/**
 * The official CloudEvents SDK for Java, on every broker, both ways. As official.py, with these brokers: kafka, by the SDK's binding;
 * rabbitmq and redis, for which it has none, by the classes that a binding extends.
 */
public final class Official {
  static final Duration PATIENCE = Duration.ofSeconds(60);
  static final int UNITS = 4;
  static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    if (args[0].equals("send")) send(args[1], args[2], args[3], args[4], args[5]);
    else receive(args[1], args[2], args[3], Integer.parseInt(args[4]));
    System.exit(0);
  }

  static synchronized void say(Map<String, Object> what) {
    try {
      // The standard output need not be in UTF-8.
      System.out.write((JSON.writeValueAsString(what) + "\n").getBytes(StandardCharsets.UTF_8));
      System.out.flush();
    } catch (java.io.IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  static CloudEvent eventOf(JsonNode given) throws Exception {
    var builder = CloudEventBuilder.v1();
    given.get("attributes").properties().forEach(attribute -> {
      var value = attribute.getValue();
      switch (attribute.getKey()) {
        case "id" -> builder.withId(value.asText());
        case "source" -> builder.withSource(URI.create(value.asText()));
        case "type" -> builder.withType(value.asText());
        case "subject" -> builder.withSubject(value.asText());
        case "dataschema" -> builder.withDataSchema(URI.create(value.asText()));
        case "datacontenttype" -> builder.withDataContentType(value.asText());
        case "time" -> builder.withTime(OffsetDateTime.parse(value.asText()));
        default -> {
          if (value.isInt()) builder.withExtension(attribute.getKey(), value.asInt());
          else if (value.isBoolean()) builder.withExtension(attribute.getKey(), value.asBoolean());
          else builder.withExtension(attribute.getKey(), value.asText());
        }
      }
    });
    var data = given.path("data");
    if (data.has("json")) builder.withData(JSON.writeValueAsBytes(data.get("json")));
    if (data.has("text")) builder.withData(data.get("text").asText().getBytes(StandardCharsets.UTF_8));
    if (data.has("hex")) builder.withData(HexFormat.of().parseHex(data.get("hex").asText()));
    return builder.build();
  }

  static void send(String broker, String url, String topic, String mode, String file) throws Exception {
    List<CloudEvent> events = new ArrayList<>();
    for (var given : JSON.readTree(new File(file))) {
      try {
        events.add(eventOf(given));
      } catch (RuntimeException error) {
        say(Map.of("id", given.get("attributes").get("id").asText(), "refused", error.toString()));
      }
    }
    switch (broker) {
      case "kafka" -> toKafka(url, topic, mode, events);
      case "rabbitmq" -> toRabbitMq(url, topic, records("cloudEvents:", mode, events));
      default -> toRedis(url, topic, records("ce-", mode, events));
    }
  }

  static List<Record> records(String prefix, String mode, List<CloudEvent> events) {
    return events.stream().map(event -> {
      var record = new Record(prefix);
      return mode.equals("binary") ? record.writeBinary(event) : record.writeStructured(event, JsonFormat.CONTENT_TYPE);
    }).toList();
  }

  static void toKafka(String url, String topic, String mode, List<CloudEvent> events) throws Exception {
    Map<String, Object> config = new LinkedHashMap<>();
    config.put("bootstrap.servers", url);
    config.put("key.serializer", StringSerializer.class);
    config.put("value.serializer", CloudEventSerializer.class);
    config.put("interceptor.classes", PartitionKeyExtensionInterceptor.class.getName());
    config.put(CloudEventSerializer.ENCODING_CONFIG, mode.equals("binary") ? Encoding.BINARY : Encoding.STRUCTURED);
    config.put(CloudEventSerializer.EVENT_FORMAT_CONFIG, JsonFormat.CONTENT_TYPE);
    try (var producer = new KafkaProducer<String, CloudEvent>(config)) {
      for (var event : events) producer.send(new ProducerRecord<>(topic, event)).get();
    }
  }

  static void toRabbitMq(String url, String topic, List<Record> records) throws Exception {
    var factory = new ConnectionFactory();
    factory.setUri(url);
    try (var connection = factory.newConnection(); var channel = connection.createChannel()) {
      channel.confirmSelect();
      for (var record : records) {
        Map<String, Object> headers = new LinkedHashMap<>(record.headers);
        var properties = new AMQP.BasicProperties.Builder().headers(headers).contentType(record.contentType).deliveryMode(2).build();
        channel.basicPublish("outbox", topic + ".0", true, properties, record.body);
      }
      channel.waitForConfirmsOrDie(PATIENCE.toMillis());
    }
  }

  static void toRedis(String url, String topic, List<Record> records) {
    try (var client = new Jedis(url)) {
      for (var record : records) {
        Map<byte[], byte[]> fields = new LinkedHashMap<>();
        fields.put(utf8("data"), record.body);
        if (record.contentType != null) fields.put(utf8("content-type"), utf8(record.contentType));
        record.headers.forEach((name, value) -> fields.put(utf8(name), utf8(value)));
        client.xadd(utf8("outbox:{" + topic + ":0}"), redis.clients.jedis.params.XAddParams.xAddParams(), fields);
      }
    }
  }

  static byte[] utf8(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static void take(String id, Supplier<MessageReader> reader) {
    CloudEvent event;
    try {
      event = reader.get().toEvent();
    } catch (RuntimeException error) {
      say(Map.of("id", id, "unread", error.toString()));
      return;
    }
    Map<String, Object> found = new LinkedHashMap<>();
    for (var name : event.getAttributeNames()) found.put(name, event.getAttribute(name).toString());
    for (var name : event.getExtensionNames()) found.put(name, event.getExtension(name).toString());
    found.put("time", ChronoUnit.MICROS.between(OffsetDateTime.parse("1970-01-01T00:00:00Z"), event.getTime()));
    found.put("data", event.getData() == null ? null : Map.of("hex", HexFormat.of().formatHex(event.getData().toBytes())));
    say(found);
  }

  static void receive(String broker, String url, String topic, int count) throws Exception {
    switch (broker) {
      case "kafka" -> fromKafka(url, topic, count);
      case "rabbitmq" -> fromRabbitMq(url, topic, count);
      default -> fromRedis(url, topic);
    }
  }

  static void fromKafka(String url, String topic, int count) {
    Map<String, Object> config = new LinkedHashMap<>();
    config.put("bootstrap.servers", url);
    config.put("group.id", "java-" + topic);
    config.put("auto.offset.reset", "earliest");
    config.put("key.deserializer", ByteArrayDeserializer.class);
    config.put("value.deserializer", ByteArrayDeserializer.class);
    long deadline = System.nanoTime() + PATIENCE.toNanos();
    try (var consumer = new KafkaConsumer<byte[], byte[]>(config)) {
      consumer.subscribe(List.of(topic));
      while (count > 0 && System.nanoTime() < deadline) {
        for (var record : consumer.poll(Duration.ofSeconds(1))) {
          var id = new String(record.headers().lastHeader("ce_id").value(), StandardCharsets.UTF_8);
          take(id, () -> KafkaMessageFactory.createReader(record));
          count--;
        }
      }
    }
  }

  static void fromRabbitMq(String url, String topic, int count) throws Exception {
    var factory = new ConnectionFactory();
    factory.setUri(url);
    var left = new CountDownLatch(count);
    try (var connection = factory.newConnection(); var channel = connection.createChannel()) {
      for (int unit = 0; unit < UNITS; unit++) {
        channel.basicConsume(topic + ":" + topic + "." + unit, true, (tag, delivery) -> {
          Map<String, String> headers = new LinkedHashMap<>();
          delivery.getProperties().getHeaders().forEach((name, value) -> headers.put(name, value.toString()));
          var properties = delivery.getProperties();
          take(properties.getMessageId(), () -> Record.reader("cloudEvents:", headers, properties.getContentType(), delivery.getBody()));
          left.countDown();
        }, tag -> { });
      }
      left.await(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }
  }

  static void fromRedis(String url, String topic) {
    try (var client = new Jedis(url)) {
      for (int unit = 0; unit < UNITS; unit++) {
        for (var entry : client.xrange(utf8("outbox:{" + topic + ":" + unit + "}"), utf8("-"), utf8("+"))) {
          var fields = (List<?>) ((List<?>) entry).get(1);
          Map<String, String> headers = new LinkedHashMap<>();
          byte[] body = new byte[0];
          for (int at = 0; at < fields.size(); at += 2) {
            var name = new String((byte[]) fields.get(at), StandardCharsets.UTF_8);
            if (name.equals("data")) body = (byte[]) fields.get(at + 1);
            else headers.put(name, new String((byte[]) fields.get(at + 1), StandardCharsets.UTF_8));
          }
          var payload = body;
          take(headers.get("ce-id"), () -> Record.reader("ce-", headers, headers.get("content-type"), payload));
        }
      }
    }
  }

  /** A record of a broker that the SDK has no binding for: headers, whose attributes have a prefix, and a body. */
  static final class Record implements MessageWriter<Record, Record>, CloudEventWriter<Record> {
    final String prefix;
    final Map<String, String> headers = new LinkedHashMap<>();
    String contentType;
    byte[] body = new byte[0];

    Record(String prefix) {
      this.prefix = prefix;
    }

    @Override
    public Record create(SpecVersion version) {
      return withContextAttribute("specversion", version.toString());
    }

    @Override
    public Record setEvent(EventFormat format, byte[] event) {
      contentType = format.serializedContentType();
      body = event;
      return this;
    }

    @Override
    public Record withContextAttribute(String name, String value) {
      if (name.equals("datacontenttype")) contentType = value;
      else headers.put(prefix + name, value);
      return this;
    }

    @Override
    public Record end(CloudEventData data) {
      body = data.toBytes();
      return this;
    }

    @Override
    public Record end() {
      return this;
    }

    static MessageReader reader(String prefix, Map<String, String> headers, String contentType, byte[] body) {
      return MessageUtils.parseStructuredOrBinaryMessage(
          () -> contentType,
          format -> new GenericStructuredMessageReader(format, body),
          () -> headers.get(prefix + "specversion"),
          version -> new Reader(version, prefix, headers, contentType, body));
    }
  }

  /** Such a record in binary mode. */
  static final class Reader extends BaseGenericBinaryMessageReaderImpl<String, String> {
    final String prefix;
    final Map<String, String> headers = new LinkedHashMap<>();

    Reader(SpecVersion version, String prefix, Map<String, String> headers, String contentType, byte[] body) {
      super(version, body.length == 0 ? null : BytesCloudEventData.wrap(body));
      this.prefix = prefix;
      this.headers.putAll(headers);
      if (contentType != null) this.headers.put("content-type", contentType);
    }

    @Override
    protected boolean isContentTypeHeader(String name) {
      return name.equals("content-type");
    }

    @Override
    protected boolean isCloudEventsHeader(String name) {
      return name.startsWith(prefix);
    }

    @Override
    protected String toCloudEventsKey(String name) {
      return name.substring(prefix.length());
    }

    @Override
    protected void forEachHeader(BiConsumer<String, String> each) {
      headers.forEach(each);
    }

    @Override
    protected String toCloudEventsValue(String value) {
      return value;
    }
  }
}
