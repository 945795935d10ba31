// A consumer without an inbox, by what the book says alone: "Wire format" and "Repeats without an inbox".
//
// It is a group of its own on each stream of its topics in Redis. An effect is a line of a file, and all that it remembers is read
// from these lines: so it remembers what it did, and no more. It ends when its standard input has ended and nothing is left to read.
//
//	consumer ADDRESS FILE TOPIC...
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const group = "a-consumer-in-go"

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// As much of the protocol of Redis as a consumer needs.
type redis struct {
	connection net.Conn
	reader     *bufio.Reader
}

func (r *redis) ask(words ...string) any {
	request := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		request += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	_, err := io.WriteString(r.connection, request)
	check(err)
	return r.answer()
}

func (r *redis) answer() any {
	line, err := r.reader.ReadString('\n')
	check(err)
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '-':
		return fmt.Errorf("redis: %s", rest)
	case '+', ':':
		return rest
	}
	length, err := strconv.Atoi(rest)
	check(err)
	if length < 0 {
		return nil
	}
	if kind == '*' {
		all := make([]any, length)
		for at := range all {
			all[at] = r.answer()
		}
		return all
	}
	text := make([]byte, length+2)
	_, err = io.ReadFull(r.reader, text)
	check(err)
	return string(text[:length])
}

// One effect, and what is remembered of its message.
type effect struct {
	Topic, Key, ID, Source, Sequence string
	HasKey                           bool
}

type ordered struct{ source, topic, key string }

type consumer struct {
	file *os.File
	last map[ordered]uint64
	ids  map[[2]string]bool
}

func open(name string) *consumer {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	check(err)
	content, err := io.ReadAll(file)
	check(err)
	// The last line may have been written in part: there is no such effect.
	whole := content[:bytes.LastIndexByte(content, '\n')+1]
	check(file.Truncate(int64(len(whole))))
	_, err = file.Seek(int64(len(whole)), io.SeekStart)
	check(err)
	consumer := &consumer{file, map[ordered]uint64{}, map[[2]string]bool{}}
	for line := range bytes.Lines(whole) {
		var effect effect
		check(json.Unmarshal(line, &effect))
		consumer.remember(effect)
	}
	return consumer
}

func (e effect) number() uint64 {
	number, err := strconv.ParseUint(e.Sequence, 10, 64)
	check(err)
	return number
}

func (c *consumer) isRepeat(effect effect) bool {
	if !effect.HasKey {
		return c.ids[[2]string{effect.Topic, effect.ID}]
	}
	return effect.number() <= c.last[ordered{effect.Source, effect.Topic, effect.Key}]
}

func (c *consumer) remember(effect effect) {
	if effect.HasKey {
		c.last[ordered{effect.Source, effect.Topic, effect.Key}] = effect.number()
	} else {
		c.ids[[2]string{effect.Topic, effect.ID}] = true
	}
}

func (c *consumer) handle(effect effect) {
	if c.isRepeat(effect) {
		return
	}
	line, err := json.Marshal(effect)
	check(err)
	_, err = c.file.Write(append(line, '\n'))
	check(err)
	c.remember(effect)
}

// Handles what was read; returns the number of entries.
func (c *consumer) take(redis *redis, found any) int {
	if err, failed := found.(error); failed {
		log.Fatal(err)
	}
	count := 0
	streams, _ := found.([]any)
	for _, stream := range streams {
		name, entries := stream.([]any)[0].(string), stream.([]any)[1].([]any)
		for _, entry := range entries {
			id, fields := entry.([]any)[0].(string), entry.([]any)[1].([]any)
			attributes := map[string]string{}
			for at := 0; at < len(fields); at += 2 {
				attributes[fields[at].(string)] = fields[at+1].(string)
			}
			key, hasKey := attributes["ce-partitionkey"]
			c.handle(effect{attributes["ce-topic"], key, attributes["ce-id"], attributes["ce-source"], attributes["ce-sequence"], hasKey})
			redis.ask("XACK", name, group, id)
			count++
		}
	}
	return count
}

// Joins the group of each stream of a topic, as soon as the topic is there.
func (r *redis) join(topic string) (streams []string) {
	name := "outbox:{" + topic + "}"
	units, ok := r.ask("HGET", name, "units").(string)
	for !ok {
		time.Sleep(20 * time.Millisecond)
		units, ok = r.ask("HGET", name, "units").(string)
	}
	count, err := strconv.Atoi(units)
	check(err)
	for unit := range count {
		stream := fmt.Sprintf("outbox:{%s:%d}", topic, unit)
		if err, failed := r.ask("XGROUP", "CREATE", stream, group, "0", "MKSTREAM").(error); failed && !strings.Contains(err.Error(), "BUSYGROUP") {
			log.Fatal(err)
		}
		streams = append(streams, stream)
	}
	return streams
}

func (r *redis) read(streams []string, from string) any {
	words := []string{"XREADGROUP", "GROUP", group, "it", "COUNT", "20", "BLOCK", "100", "STREAMS"}
	words = append(words, streams...)
	for range streams {
		words = append(words, from)
	}
	return r.ask(words...)
}

func main() {
	connection, err := net.Dial("tcp", os.Args[1])
	check(err)
	redis, consumer := &redis{connection, bufio.NewReader(connection)}, open(os.Args[2])
	var streams []string
	for _, topic := range os.Args[3:] {
		streams = append(streams, redis.join(topic)...)
	}
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	// First what it had read and not acknowledged when it was killed.
	for consumer.take(redis, redis.read(streams, "0")) > 0 {
	}
	for {
		last := ended.Load()
		if consumer.take(redis, redis.read(streams, ">")) == 0 && last {
			return
		}
	}
}
