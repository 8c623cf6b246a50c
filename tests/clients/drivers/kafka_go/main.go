// What applications do every day, with segmentio's kafka-go: see tests/clients/everyday.py.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

const timeMax = 30 * time.Second

type plan struct {
	Bootstrap string `json:"bootstrap"`
	Topic     string `json:"topic"`
	Group     string `json:"group"`
	TimeMs    int64  `json:"time_ms"`
	SinceMs   int64  `json:"since_ms"`
	First     []int  `json:"first"`
	Second    []int  `json:"second"`
}

var (
	p      plan
	seeds  []string
	client *kafka.Client
)

func main() {
	must(json.Unmarshal([]byte(os.Args[1]), &p))
	seeds = strings.Split(p.Bootstrap, ",")
	client = &kafka.Client{Addr: kafka.TCP(seeds...), Timeout: timeMax}
	ctx, cancel := context.WithTimeout(context.Background(), 3*timeMax)
	defer cancel()
	must(json.NewEncoder(os.Stdout).Encode(everyday(ctx)))
}

func everyday(ctx context.Context) map[string]any {
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: p.Topic, NumPartitions: 2, ReplicationFactor: 3},
	}})
	must(err)
	must(created.Errors[p.Topic])
	described, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{p.Topic}})
	must(err)
	result := map[string]any{
		"client": "kafka-go " + version(), "partitions": len(described.Topics[0].Partitions),
	}
	produce(ctx, p.First)
	result["read"] = readGroup(ctx, len(p.First))
	result["committed"] = committed(ctx)
	produce(ctx, p.Second)
	result["read_on"] = readGroup(ctx, len(p.Second))
	result["group_offsets"] = committed(ctx)
	result["since_offset"], result["since"] = readSince(ctx)
	result["retention_ms"] = setRetention(ctx, "3600000")
	groups, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	must(err)
	listed := false
	for _, group := range groups.Groups {
		listed = listed || group.GroupID == p.Group
	}
	result["is_listed"] = listed
	deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{p.Topic}})
	must(err)
	must(deleted.Errors[p.Topic])
	return result
}

func produce(ctx context.Context, numbers []int) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(seeds...), Topic: p.Topic, RequiredAcks: kafka.RequireAll,
		Compression: kafka.Gzip, BatchTimeout: 5 * time.Millisecond,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, partitions ...int) int {
			return number(m) % 2
		}),
	}
	messages := make([]kafka.Message, len(numbers))
	for i, n := range numbers {
		text := []byte(strconv.Itoa(n))
		messages[i] = kafka.Message{
			Key: []byte(fmt.Sprintf("k%d", n)), Value: text,
			Time:    time.UnixMilli(p.TimeMs + int64(1000*n)),
			Headers: []kafka.Header{{Key: "number", Value: text}},
		}
	}
	err := writer.WriteMessages(ctx, messages...)
	// The writer asks any server, once: one that is a moment behind does not know the topic yet.
	for asked := 0; asked < 50 && errors.Is(err, kafka.UnknownTopicOrPartition); asked++ {
		time.Sleep(100 * time.Millisecond)
		err = writer.WriteMessages(ctx, messages...)
	}
	must(err)
	must(writer.Close())
}

// readGroup reads `count` records as a member of the group, and commits.
func readGroup(ctx context.Context, count int) map[string][]int {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: seeds, GroupID: p.Group, Topic: p.Topic, StartOffset: kafka.FirstOffset,
		MaxWait: 100 * time.Millisecond, HeartbeatInterval: 500 * time.Millisecond,
	})
	found := map[string][]int{}
	messages := make([]kafka.Message, count)
	for i := range messages {
		message, err := reader.FetchMessage(ctx)
		must(err)
		n := number(message)
		if string(message.Key) != fmt.Sprintf("k%d", n) || len(message.Headers) != 1 ||
			string(message.Headers[0].Value) != string(message.Value) {
			panic(fmt.Sprint("another record: ", message))
		}
		messages[i] = message
		partition := strconv.Itoa(message.Partition)
		found[partition] = append(found[partition], n)
	}
	must(reader.CommitMessages(ctx, messages...))
	must(reader.Close())
	return found
}

func committed(ctx context.Context) []int64 {
	answer, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: p.Group, Topics: map[string][]int{p.Topic: {0, 1}},
	})
	must(err)
	must(answer.Error)
	offsets := make([]int64, 2)
	for _, one := range answer.Topics[p.Topic] {
		must(one.Error)
		offsets[one.Partition] = one.CommittedOffset
	}
	return offsets
}

// readSince is the offset and the number of the first record of partition 1 at a time or later.
func readSince(ctx context.Context) (int64, int) {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: seeds, Topic: p.Topic, Partition: 1})
	must(reader.SetOffsetAt(ctx, time.UnixMilli(p.SinceMs)))
	offset := reader.Offset()
	message, err := reader.ReadMessage(ctx)
	must(err)
	must(reader.Close())
	return offset, number(message)
}

func setRetention(ctx context.Context, value string) string {
	altered, err := client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: p.Topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
				Name: "retention.ms", Value: value, ConfigOperation: kafka.ConfigOperationSet,
			}},
		}},
	})
	must(err)
	must(altered.Resources[0].Error)
	found := ""
	// Any server answers, as with Kafka; one that is a moment behind tells what was.
	for asked := 0; asked < 50 && found != value; asked++ {
		answer, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{{
				ResourceType: kafka.ResourceTypeTopic, ResourceName: p.Topic,
				ConfigNames: []string{"retention.ms"},
			}},
		})
		must(err)
		must(answer.Resources[0].Error)
		found = answer.Resources[0].ConfigEntries[0].ConfigValue
		time.Sleep(100 * time.Millisecond)
	}
	return found
}

func number(m kafka.Message) int {
	n, err := strconv.Atoi(string(m.Value))
	must(err)
	return n
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/segmentio/kafka-go" {
				return module.Version
			}
		}
	}
	return "unknown"
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
