// The official CloudEvents SDK for Go, on every broker, both ways. As official.py, with these brokers: kafka and amqp (AMQP 1.0),
// by the SDK's bindings; rabbitmq (AMQP 0-9-1) and redis, for which it has none, by the interfaces that a binding implements.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/IBM/sarama"
	amqp1 "github.com/cloudevents/sdk-go/protocol/amqp/v2"
	"github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/types"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
)

const (
	patience = 60 * time.Second
	units    = 4
)

type given struct {
	Attributes map[string]any `json:"attributes"`
	Data       *struct {
		JSON json.RawMessage `json:"json"`
		Text *string         `json:"text"`
		Hex  *string         `json:"hex"`
	} `json:"data"`
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

var saying sync.Mutex

func say(what map[string]any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(string(must(json.Marshal(what))))
}

func eventOf(given given) (cloudevents.Event, error) {
	event := cloudevents.NewEvent()
	for name, value := range given.Attributes {
		text, _ := value.(string)
		switch name {
		case "id":
			event.SetID(text)
		case "source":
			event.SetSource(text)
		case "type":
			event.SetType(text)
		case "subject":
			event.SetSubject(text)
		case "dataschema":
			event.SetDataSchema(text)
		case "datacontenttype":
			event.SetDataContentType(text)
		case "time":
			event.SetTime(must(time.Parse(time.RFC3339Nano, text)))
		default:
			if number, ok := value.(float64); ok {
				value = int32(number)
			}
			event.SetExtension(name, value)
		}
	}
	if err := setData(&event, given); err != nil {
		return event, err
	}
	return event, event.Validate()
}

func setData(event *cloudevents.Event, given given) error {
	data := given.Data
	switch {
	case data == nil:
		return nil
	case data.Hex != nil:
		return event.SetData(event.DataContentType(), must(hex.DecodeString(*data.Hex)))
	case data.Text != nil:
		return event.SetData(event.DataContentType(), *data.Text)
	case event.DataContentType() == "":
		// SetData would set the content type as well.
		event.DataEncoded = data.JSON
		return nil
	default:
		return event.SetData(event.DataContentType(), data.JSON)
	}
}

func send(broker, url, topic, mode, file string) {
	ctx := binding.WithForceBinary(context.Background())
	if mode == "structured" {
		ctx = binding.WithForceStructured(context.Background())
	}
	var all []given
	check(json.Unmarshal(must(os.ReadFile(file)), &all))
	write, done := map[string]func(string, string) (writer, func()){
		"kafka": toKafka, "amqp": toAmqp, "rabbitmq": toRabbitMq, "redis": toRedis,
	}[broker](url, topic)
	for _, given := range all {
		event, err := eventOf(given)
		if err == nil {
			err = write(ctx, event)
		}
		if err != nil {
			say(map[string]any{"id": given.Attributes["id"], "refused": err.Error()})
		}
	}
	done()
}

type writer func(context.Context, cloudevents.Event) error

func bySdk(sender any) writer {
	client := must(cloudevents.NewClient(sender))
	return func(ctx context.Context, event cloudevents.Event) error {
		if result := client.Send(ctx, event); cloudevents.IsUndelivered(result) || cloudevents.IsNACK(result) {
			return result
		}
		return nil
	}
}

func toKafka(url, topic string) (writer, func()) {
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0
	sender := must(kafka_sarama.NewSender([]string{url}, config, topic))
	return bySdk(sender), func() { check(sender.Close(context.Background())) }
}

func options(broker string) (string, []amqp.ConnOption) {
	parsed := must(url.Parse(broker))
	password, _ := parsed.User.Password()
	host := amqp.ConnServerHostname("vhost:" + strings.TrimPrefix(parsed.Path, "/"))
	return "amqp://" + parsed.Host, []amqp.ConnOption{amqp.ConnSASLPlain(parsed.User.Username(), password), host}
}

func toAmqp(url, topic string) (writer, func()) {
	server, options := options(url)
	var protocol *amqp1.Protocol
	open := func() {
		protocol = must(amqp1.NewSenderProtocol(server, "/exchanges/outbox/"+topic+".0", options, nil))
	}
	open()
	write := func(ctx context.Context, event cloudevents.Event) error {
		err := bySdk(protocol)(ctx, event)
		if err != nil {
			// The broker has detached the link.
			_ = protocol.Close(ctx)
			open()
		}
		return err
	}
	return write, func() { check(protocol.Close(context.Background())) }
}

func toRabbitMq(url, topic string) (writer, func()) {
	connection := must(amqp091.Dial(url))
	channel := must(connection.Channel())
	check(channel.Confirm(false))
	write := func(ctx context.Context, event cloudevents.Event) error {
		message := record{prefix: "cloudEvents:"}
		if _, err := binding.Write(ctx, binding.ToMessage(&event), &message, &message); err != nil {
			return err
		}
		headers := amqp091.Table{}
		for name, value := range message.headers {
			headers[name] = value
		}
		publishing := amqp091.Publishing{Headers: headers, ContentType: message.contentType, DeliveryMode: 2, Body: message.body}
		confirmation := must(channel.PublishWithDeferredConfirm("outbox", topic+".0", true, false, publishing))
		confirmation.Wait()
		return nil
	}
	return write, func() { check(connection.Close()) }
}

func toRedis(url, topic string) (writer, func()) {
	client := redis.NewClient(must(redis.ParseURL(url)))
	write := func(ctx context.Context, event cloudevents.Event) error {
		message := record{prefix: "ce-"}
		if _, err := binding.Write(ctx, binding.ToMessage(&event), &message, &message); err != nil {
			return err
		}
		fields := []any{"data", message.body}
		if message.contentType != "" {
			fields = append(fields, "content-type", message.contentType)
		}
		for name, value := range message.headers {
			fields = append(fields, name, value)
		}
		stream := fmt.Sprintf("outbox:{%s:0}", topic)
		return client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: fields}).Err()
	}
	return write, func() { check(client.Close()) }
}

func take(id string, event *cloudevents.Event, err error) {
	if err == nil {
		err = event.Validate()
	}
	if err != nil {
		say(map[string]any{"id": id, "unread": err.Error()})
		return
	}
	found := map[string]any{"specversion": event.SpecVersion(), "id": event.ID(), "source": event.Source(), "type": event.Type()}
	texts := map[string]string{"datacontenttype": event.DataContentType(), "subject": event.Subject(), "dataschema": event.DataSchema()}
	for name, value := range event.Extensions() {
		texts[name] = must(types.Format(value))
	}
	for name, value := range texts {
		if value != "" {
			found[name] = value
		}
	}
	found["time"] = event.Time().UnixMicro()
	found["data"] = map[string]string{"hex": hex.EncodeToString(event.Data())}
	say(found)
}

func receive(broker, url, topic, count string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	left := must(strconv.Atoi(count))
	came := func() {
		saying.Lock()
		defer saying.Unlock()
		if left--; left == 0 {
			cancel()
		}
	}
	map[string]func(context.Context, string, string, func()){
		"kafka": fromKafka, "amqp": fromAmqp, "rabbitmq": fromRabbitMq, "redis": fromRedis,
	}[broker](ctx, url, topic, came)
}

func fromKafka(ctx context.Context, url, topic string, came func()) {
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	consumer := must(kafka_sarama.NewConsumer([]string{url}, config, "go-"+topic, topic))
	client := must(cloudevents.NewClient(consumer))
	_ = client.StartReceiver(ctx, func(event cloudevents.Event) {
		take(event.ID(), &event, nil)
		came()
	})
}

func fromAmqp(ctx context.Context, broker, topic string, came func()) {
	var all sync.WaitGroup
	for unit := range units {
		server, options := options(broker)
		queue := "/queues/" + url.PathEscape(fmt.Sprintf("%s:%s.%d", topic, topic, unit))
		protocol := must(amqp1.NewReceiverProtocol(server, queue, options, nil))
		all.Go(func() {
			for {
				message, err := protocol.Receive(ctx)
				if err != nil {
					return
				}
				event, err := binding.ToEvent(ctx, message)
				id, _ := message.(*amqp1.Message).AMQP.ApplicationProperties["cloudEvents:id"].(string)
				take(id, event, err)
				check(message.Finish(nil))
				came()
			}
		})
	}
	all.Wait()
}

func fromRabbitMq(ctx context.Context, url, topic string, came func()) {
	connection := must(amqp091.Dial(url))
	channel := must(connection.Channel())
	var all sync.WaitGroup
	for unit := range units {
		deliveries := must(channel.Consume(fmt.Sprintf("%s:%s.%d", topic, topic, unit), "", true, false, false, false, nil))
		all.Go(func() {
			for delivery := range deliveries {
				message := record{prefix: "cloudEvents:", headers: map[string]string{}, contentType: delivery.ContentType, body: delivery.Body}
				for name, value := range delivery.Headers {
					message.headers[name], _ = value.(string)
				}
				event, err := binding.ToEvent(ctx, &message)
				take(delivery.MessageId, event, err)
				came()
			}
		})
	}
	<-ctx.Done()
	check(connection.Close())
	all.Wait()
}

func fromRedis(ctx context.Context, url, topic string, _ func()) {
	client := redis.NewClient(must(redis.ParseURL(url)))
	for unit := range units {
		for _, entry := range must(client.XRange(ctx, fmt.Sprintf("outbox:{%s:%d}", topic, unit), "-", "+").Result()) {
			message := record{prefix: "ce-", headers: map[string]string{}}
			for name, value := range entry.Values {
				text, _ := value.(string)
				switch name {
				case "data":
					message.body = []byte(text)
				case "content-type":
					message.contentType = text
				default:
					message.headers[name] = text
				}
			}
			event, err := binding.ToEvent(ctx, &message)
			take(message.headers["ce-id"], event, err)
		}
	}
}

func main() {
	arguments := os.Args[2:]
	if os.Args[1] == "send" {
		send(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4])
	} else {
		receive(arguments[0], arguments[1], arguments[2], arguments[3])
	}
}
