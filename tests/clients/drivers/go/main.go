// Driver of franz-go. The protocol is that of tests/clients/driver.py: one JSON command a line on
// standard input, one JSON answer a line on standard output.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	callTimeout    = 20 * time.Second
	connectTimeout = 4 * time.Second
	recordsPerPoll = 500
	lineBytesMax   = 64 << 20
)

type command struct {
	Do          string   `json:"do"`
	Compression string   `json:"compression"`
	Idempotent  bool     `json:"idempotent"`
	BatchBytes  int32    `json:"batch_bytes"`
	Records     []record `json:"records"`
	Group       *string  `json:"group"`
	Reset       string   `json:"reset"`
	Topics      []string `json:"topics"`
	Pattern     string   `json:"pattern"`
	Partitions  [][2]any `json:"partitions"`
	TimeoutMs   int      `json:"timeout_ms"`
	Topic       string   `json:"topic"`
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	Count       int      `json:"count"`
	Isolation   string   `json:"isolation"`
	Positions   bool     `json:"positions"`
	End         string   `json:"end"`
	Commits     bool     `json:"commits"`

	TransactionalID string `json:"transactional_id"`
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

var errNoOffset = errors.New("no offset")

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// driver holds the consumer's options until it is told what to consume: franz-go takes both when a
// client is made.
type driver struct {
	seeds    []string
	group    string
	begin    kgo.Offset
	options  []kgo.Opt
	consumer *kgo.Client
	producer *kgo.Client

	mutex sync.Mutex
	owned map[string]map[int32]bool
}

func main() {
	d := &driver{seeds: strings.Split(os.Args[1], ",")}
	commands := map[string]func(command) (answer, error){
		"hello": d.hello, "connect": d.connect, "produce": d.produce, "open": d.open, "subscribe": d.subscribe,
		"init_transactions": d.initTransactions, "transact": d.transact, "end": d.end,
		"subscribe_pattern": d.subscribePattern, "assign": d.assign, "poll": d.poll,
		"pause": d.pause, "resume": d.resume, "seek": d.seek, "commit": d.commit,
		"committed": d.committed, "delete_offsets": d.deleteOffsets,
		"create_partitions": d.createPartitions, "close": d.close,
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
			kind := "other"
			if errors.Is(err, errNoOffset) {
				kind = "no_offset"
			}
			result = answer{"failed": kind, "message": err.Error()}
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

func (d *driver) hello(command) (answer, error) {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/twmb/franz-go" {
				version = module.Version
			}
		}
	}
	return answer{"client": "franz-go", "version": version}, nil
}

func (d *driver) connect(command) (answer, error) {
	client, err := newClient(kgo.SeedBrokers(d.seeds...), kgo.RetryTimeout(time.Second))
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		defer client.Close()
		err = client.Ping(ctx)
	}
	if err != nil {
		return answer{"error": err.Error()}, nil
	}
	return answer{"error": ""}, nil
}

func (d *driver) produce(c command) (answer, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(d.seeds...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(codecs[c.Compression]),
		kgo.ProducerBatchMaxBytes(c.BatchBytes),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if !c.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := newClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records := make([]*kgo.Record, len(c.Records))
	for i, r := range c.Records {
		headers := make([]kgo.RecordHeader, len(r.Headers))
		for j, header := range r.Headers {
			headers[j] = kgo.RecordHeader{Key: *header[0], Value: unhex(header[1])}
		}
		records[i] = &kgo.Record{
			Topic: r.Topic, Partition: r.Partition, Key: unhex(r.Key), Value: unhex(r.Value),
			Timestamp: time.UnixMilli(r.Timestamp), Headers: headers,
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return nil, err
	}
	// ProduceSync fills partition and offset into the records it was given.
	offsets := make([][2]int64, len(records))
	for i, r := range records {
		offsets[i] = [2]int64{int64(r.Partition), r.Offset}
	}
	return answer{"offsets": offsets}, nil
}

func (d *driver) initTransactions(c command) (answer, error) {
	var err error
	d.producer, err = newClient(
		kgo.SeedBrokers(d.seeds...),
		kgo.TransactionalID(c.TransactionalID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return nil, err
	}
	// It asks for nothing before its first record, unless it is told to.
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_, _, err = d.producer.ProducerID(ctx)
	return nil, err
}

func (d *driver) transact(c command) (answer, error) {
	if c.Positions {
		return nil, errors.New("franz-go commits positions in sessions of its own")
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := d.producer.BeginTransaction(); err != nil {
		return nil, err
	}
	for _, r := range c.Records {
		made := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: unhex(r.Key), Value: unhex(r.Value)}
		if err := d.producer.ProduceSync(ctx, made).FirstErr(); err != nil {
			return nil, err
		}
	}
	if c.End == "" {
		return nil, nil
	}
	return d.end(command{Commits: c.End == "commit"})
}

func (d *driver) end(c command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return nil, d.producer.EndTransaction(ctx, kgo.TransactionEndTry(c.Commits))
}

func (d *driver) open(c command) (answer, error) {
	_, _ = d.close(c)
	d.group = ""
	d.owned = map[string]map[int32]bool{}
	d.begin = map[string]kgo.Offset{
		"earliest": kgo.NewOffset().AtStart(),
		"latest":   kgo.NewOffset().AtEnd(),
		"none":     kgo.NoResetOffset().AtStart(),
	}[c.Reset]
	if c.Reset == "none" && c.Group != nil {
		d.begin = kgo.NewOffset().AtCommitted()
	}
	d.options = []kgo.Opt{
		kgo.SeedBrokers(d.seeds...),
		kgo.ConsumeStartOffset(d.begin),
		kgo.ConsumeResetOffset(d.begin),
		kgo.MetadataMaxAge(500 * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	if c.Isolation == "read_committed" {
		d.options = append(d.options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if c.Group != nil {
		d.group = *c.Group
	}
	return nil, nil
}

func (d *driver) start(options ...kgo.Opt) (answer, error) {
	var err error
	d.consumer, err = newClient(append(d.options, options...)...)
	return nil, err
}

func (d *driver) groupOptions() []kgo.Opt {
	if d.group == "" {
		return nil
	}
	return []kgo.Opt{
		kgo.ConsumerGroup(d.group),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			d.own(given, true)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
			d.own(taken, false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
			d.own(taken, false)
		}),
	}
}

func (d *driver) own(partitions map[string][]int32, isOwned bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for topic, numbers := range partitions {
		if d.owned[topic] == nil {
			d.owned[topic] = map[int32]bool{}
		}
		for _, number := range numbers {
			d.owned[topic][number] = isOwned
		}
	}
}

func (d *driver) subscribe(c command) (answer, error) {
	return d.start(append(d.groupOptions(), kgo.ConsumeTopics(c.Topics...))...)
}

func (d *driver) subscribePattern(c command) (answer, error) {
	return d.start(append(d.groupOptions(), kgo.ConsumeTopics(c.Pattern), kgo.ConsumeRegex())...)
}

func (d *driver) assign(c command) (answer, error) {
	wanted := map[string]map[int32]kgo.Offset{}
	for topic, numbers := range byTopic(c.Partitions) {
		wanted[topic] = map[int32]kgo.Offset{}
		for _, number := range numbers {
			wanted[topic][number] = d.begin
		}
	}
	d.own(byTopic(c.Partitions), true)
	return d.start(kgo.ConsumePartitions(wanted))
}

func (d *driver) poll(c command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.TimeoutMs)*time.Millisecond)
	defer cancel()
	fetches := d.consumer.PollRecords(ctx, recordsPerPoll)
	for _, failure := range fetches.Errors() {
		if errors.Is(failure.Err, context.DeadlineExceeded) {
			continue
		}
		if errors.Is(failure.Err, kerr.OffsetOutOfRange) || strings.Contains(failure.Err.Error(), "no prior committed offset") {
			return nil, fmt.Errorf("%w: %w", errNoOffset, failure.Err)
		}
		return nil, failure.Err
	}
	records := []record{}
	fetches.EachRecord(func(r *kgo.Record) {
		headers := make([][]*string, len(r.Headers))
		for i, header := range r.Headers {
			name := header.Key
			headers[i] = []*string{&name, tohex(header.Value)}
		}
		records = append(records, record{
			Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: tohex(r.Key),
			Value: tohex(r.Value), Timestamp: r.Timestamp.UnixMilli(), Headers: headers,
		})
	})
	owned := [][2]any{}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for topic, numbers := range d.owned {
		for number, isOwned := range numbers {
			if isOwned {
				owned = append(owned, [2]any{topic, number})
			}
		}
	}
	return answer{"records": records, "owned": owned}, nil
}

func (d *driver) pause(c command) (answer, error) {
	d.consumer.PauseFetchPartitions(byTopic(c.Partitions))
	return nil, nil
}

func (d *driver) resume(c command) (answer, error) {
	d.consumer.ResumeFetchPartitions(byTopic(c.Partitions))
	return nil, nil
}

func (d *driver) seek(c command) (answer, error) {
	d.consumer.SetOffsets(map[string]map[int32]kgo.EpochOffset{
		c.Topic: {c.Partition: {Epoch: -1, Offset: c.Offset}},
	})
	return nil, nil
}

func (d *driver) commit(command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return nil, d.consumer.CommitUncommittedOffsets(ctx)
}

func (d *driver) committed(c command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	known, err := kadm.NewClient(d.consumer).FetchOffsets(ctx, d.group)
	if err != nil {
		return nil, err
	}
	offsets := make([]*int64, len(c.Partitions))
	for i, pair := range c.Partitions {
		if found, ok := known.Lookup(pair[0].(string), int32(pair[1].(float64))); ok && found.At >= 0 {
			offsets[i] = &found.At
		}
	}
	return answer{"offsets": offsets}, nil
}

func (d *driver) deleteOffsets(c command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	client, err := newClient(kgo.SeedBrokers(d.seeds...))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	wanted := kadm.TopicsSet{}
	for topic, numbers := range byTopic(c.Partitions) {
		wanted.Add(topic, numbers...)
	}
	found, groupError := kadm.NewClient(client).DeleteOffsets(ctx, *c.Group, wanted)
	codes := make([]int16, len(c.Partitions))
	for i, pair := range c.Partitions {
		failure := groupError
		if failure == nil {
			failure = found[pair[0].(string)][int32(pair[1].(float64))]
		}
		var refused *kerr.Error
		if failure != nil && !errors.As(failure, &refused) {
			return nil, failure
		}
		if refused != nil {
			codes[i] = refused.Code
		}
	}
	return answer{"errors": codes}, nil
}

func (d *driver) createPartitions(c command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	client, err := newClient(kgo.SeedBrokers(d.seeds...))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found, err := kadm.NewClient(client).UpdatePartitions(ctx, c.Count, c.Topic)
	if err != nil {
		return nil, err
	}
	var refused *kerr.Error
	if failure := found[c.Topic].Err; failure != nil && !errors.As(failure, &refused) {
		return nil, failure
	}
	if refused != nil {
		return answer{"error": refused.Code}, nil
	}
	return answer{"error": 0}, nil
}

func (d *driver) close(command) (answer, error) {
	if d.consumer != nil {
		d.consumer.Close()
		d.consumer = nil
	}
	return nil, nil
}

func byTopic(partitions [][2]any) map[string][]int32 {
	found := map[string][]int32{}
	for _, pair := range partitions {
		topic := pair[0].(string)
		found[topic] = append(found[topic], int32(pair[1].(float64)))
	}
	return found
}

func unhex(text *string) []byte {
	if text == nil {
		return nil
	}
	data, err := hex.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	// An empty value is not a null one.
	if data == nil {
		data = []byte{}
	}
	return data
}

func tohex(data []byte) *string {
	if data == nil {
		return nil
	}
	text := hex.EncodeToString(data)
	return &text
}
