// Driver of sarama, told which version of Kafka's protocol to speak: the first argument. It has the
// commands of tests/clients/driver.py that a client of before 0.11 can follow; a consumer with a
// group has partitions assigned and commits for that group.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const (
	callTimeout  = 20 * time.Second
	lineBytesMax = 64 << 20
)

type command struct {
	Do          string   `json:"do"`
	Compression string   `json:"compression"`
	BatchBytes  int      `json:"batch_bytes"`
	Records     []record `json:"records"`
	Group       *string  `json:"group"`
	Reset       string   `json:"reset"`
	Partitions  [][2]any `json:"partitions"`
	TimeoutMs   int      `json:"timeout_ms"`
}

type record struct {
	Topic     string      `json:"topic"`
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Timestamp int64       `json:"timestamp"`
	Headers   [][]*string `json:"headers"`
}

type answer map[string]any

type partition struct {
	topic  string
	number int32
}

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
}

var begins = map[string]int64{"earliest": sarama.OffsetOldest, "latest": sarama.OffsetNewest}

type driver struct {
	version sarama.KafkaVersion
	seeds   []string
	begin   int64

	client   sarama.Client
	consumer sarama.Consumer
	offsets  sarama.OffsetManager
	managed  map[partition]sarama.PartitionOffsetManager
	assigned []sarama.PartitionConsumer
	messages chan *sarama.ConsumerMessage
}

func main() {
	version, err := sarama.ParseKafkaVersion(os.Args[1])
	if err != nil {
		panic(err)
	}
	d := &driver{version: version, seeds: strings.Split(os.Args[2], ",")}
	commands := map[string]func(command) (answer, error){
		"hello": d.hello, "produce": d.produce, "open": d.open, "assign": d.assign,
		"poll": d.poll, "commit": d.commit, "committed": d.committed, "close": d.close,
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		result, err := commands[c.Do](c)
		if err != nil {
			result = answer{"failed": "other", "message": err.Error()}
		}
		if result == nil {
			result = answer{}
		}
		if err := out.Encode(result); err != nil {
			panic(err)
		}
	}
	_, _ = d.close(command{})
}

func (d *driver) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = d.version
	config.ApiVersionsRequest = false
	config.Net.ReadTimeout = callTimeout
	config.Metadata.RefreshFrequency = 500 * time.Millisecond
	return config
}

func (d *driver) hello(command) (answer, error) {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/IBM/sarama" {
				version = module.Version
			}
		}
	}
	return answer{"client": "sarama", "version": version}, nil
}

func (d *driver) produce(c command) (answer, error) {
	config := d.config()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Timeout = callTimeout
	config.Producer.Compression = codecs[c.Compression]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Bytes = c.BatchBytes
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Producer.Return.Successes = true
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(d.seeds, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	messages := make([]*sarama.ProducerMessage, len(c.Records))
	for i, r := range c.Records {
		messages[i] = &sarama.ProducerMessage{
			Topic: r.Topic, Partition: r.Partition, Key: encoder(r.Key), Value: encoder(r.Value),
			Timestamp: time.UnixMilli(r.Timestamp),
		}
	}
	if err := producer.SendMessages(messages); err != nil {
		return nil, fmt.Errorf("%w: %w", err, err.(sarama.ProducerErrors)[0])
	}
	offsets := make([][2]int64, len(messages))
	for i, m := range messages {
		offsets[i] = [2]int64{int64(m.Partition), m.Offset}
	}
	return answer{"offsets": offsets}, nil
}

func (d *driver) open(c command) (answer, error) {
	if _, err := d.close(c); err != nil {
		return nil, err
	}
	d.begin = begins[c.Reset]
	config := d.config()
	config.Consumer.Offsets.Initial = d.begin
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	var err error
	if d.client, err = sarama.NewClient(d.seeds, config); err != nil {
		return nil, err
	}
	if c.Group != nil {
		if d.offsets, err = sarama.NewOffsetManagerFromClient(*c.Group, d.client); err != nil {
			return nil, err
		}
	}
	d.managed = map[partition]sarama.PartitionOffsetManager{}
	d.messages = make(chan *sarama.ConsumerMessage)
	d.consumer, err = sarama.NewConsumerFromClient(d.client)
	return nil, err
}

func (d *driver) assign(c command) (answer, error) {
	for _, pair := range c.Partitions {
		where := partition{pair[0].(string), int32(pair[1].(float64))}
		begin := d.begin
		if d.offsets != nil {
			managed, err := d.manage(where)
			if err != nil {
				return nil, err
			}
			begin, _ = managed.NextOffset()
		}
		reader, err := d.consumer.ConsumePartition(where.topic, where.number, begin)
		if err != nil {
			return nil, err
		}
		d.assigned = append(d.assigned, reader)
		go func(messages chan *sarama.ConsumerMessage) {
			for message := range reader.Messages() {
				messages <- message
			}
		}(d.messages)
	}
	return nil, nil
}

func (d *driver) manage(where partition) (sarama.PartitionOffsetManager, error) {
	if managed, ok := d.managed[where]; ok {
		return managed, nil
	}
	managed, err := d.offsets.ManagePartition(where.topic, where.number)
	if err == nil {
		d.managed[where] = managed
	}
	return managed, err
}

func (d *driver) poll(c command) (answer, error) {
	records := []record{}
	timeout := time.After(time.Duration(c.TimeoutMs) * time.Millisecond)
	quiet := (<-chan time.Time)(nil)
	for {
		select {
		case m := <-d.messages:
			timestamp := int64(-1)
			if !m.Timestamp.IsZero() {
				timestamp = m.Timestamp.UnixMilli()
			}
			records = append(records, record{
				Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Key: tohex(m.Key),
				Value: tohex(m.Value), Timestamp: timestamp, Headers: [][]*string{},
			})
			if managed, ok := d.managed[partition{m.Topic, m.Partition}]; ok {
				managed.MarkOffset(m.Offset+1, "")
			}
			quiet = time.After(10 * time.Millisecond)
			continue
		case <-quiet:
		case <-timeout:
		}
		return answer{"records": records, "owned": [][2]any{}}, nil
	}
}

func (d *driver) commit(command) (answer, error) {
	d.offsets.Commit()
	for _, managed := range d.managed {
		select {
		case err := <-managed.Errors():
			return nil, err
		default:
		}
	}
	return nil, nil
}

func (d *driver) committed(c command) (answer, error) {
	offsets := make([]*int64, len(c.Partitions))
	for i, pair := range c.Partitions {
		managed, err := d.manage(partition{pair[0].(string), int32(pair[1].(float64))})
		if err != nil {
			return nil, err
		}
		if offset, _ := managed.NextOffset(); offset >= 0 {
			offsets[i] = &offset
		}
	}
	return answer{"offsets": offsets}, nil
}

func (d *driver) close(command) (answer, error) {
	if d.client == nil {
		return nil, nil
	}
	for _, reader := range d.assigned {
		reader.AsyncClose()
	}
	// What readers still have to pass on is dropped, or they would never end.
	go func(messages chan *sarama.ConsumerMessage) {
		for range messages {
		}
	}(d.messages)
	for _, managed := range d.managed {
		managed.AsyncClose()
	}
	if d.offsets != nil {
		_ = d.offsets.Close()
	}
	_ = d.consumer.Close()
	err := d.client.Close()
	d.client, d.consumer, d.offsets, d.assigned = nil, nil, nil, nil
	return nil, err
}

func encoder(text *string) sarama.Encoder {
	if text == nil {
		return nil
	}
	data, err := hex.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	return sarama.ByteEncoder(data)
}

func tohex(data []byte) *string {
	if data == nil {
		return nil
	}
	text := hex.EncodeToString(data)
	return &text
}
