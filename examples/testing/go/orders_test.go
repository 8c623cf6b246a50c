// Tests of an application against a cluster that fails: `go test ./...`.
package orders

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"vdl/examples/testing/vdltest"
)

var cluster *vdltest.Cluster

func TestMain(m *testing.M) {
	var err error
	if cluster, err = vdltest.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	cluster.Close()
	os.Exit(code)
}

// place is the application: it returns when the order is safe.
func place(ctx context.Context, client *kgo.Client, topic, order string) error {
	return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(order)}).FirstErr()
}

func TestOrdersSurviveTheirLeader(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	topic, err := cluster.Topic(1)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cluster.Brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	if err := place(ctx, client, topic, "before"); err != nil {
		t.Fatal(err)
	}
	leader, err := cluster.Leader(topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Post(fmt.Sprintf("/kill?server=%d", leader)); err != nil {
		t.Fatal(err)
	}
	if err := place(ctx, client, topic, "after"); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Do("restore"); err != nil {
		t.Fatal(err)
	}

	var found []string
	for len(found) < 2 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { found = append(found, string(r.Value)) })
	}
	if fmt.Sprint(found) != "[before after]" {
		t.Fatalf("found %v", found)
	}
}

func TestWrongCommandIsAnError(t *testing.T) {
	if err := cluster.Do("kill", 9); err == nil {
		t.Fatal("server 9 was killed")
	}
	if _, err := cluster.Post("/kill?server=9"); err == nil {
		t.Fatal("server 9 was killed")
	}
}
