// One synchronous sarama producer: SendMessages of a batch, and the next when it is acknowledged.
//
//	main BOOTSTRAP TOPIC RECORD_BYTES BATCH_RECORDS WARM_UP_SECONDS SECONDS
//
// The topic exists. Prints one line of JSON: records_per_second, mb_per_second (10^6 bytes of
// payload) and mean_ms, of one call whatever its batch.
package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 6 {
		return fmt.Errorf("six arguments, not %d", len(arguments))
	}
	bootstrap, topic := strings.Split(arguments[0], ","), arguments[1]
	numbers := make([]float64, 4)
	for position, argument := range arguments[2:] {
		number, err := strconv.ParseFloat(argument, 64)
		if err != nil {
			return err
		}
		numbers[position] = number
	}
	recordBytes, batchRecords := int(numbers[0]), int(numbers[1])
	producer, err := sarama.NewSyncProducer(bootstrap, config())
	if err != nil {
		return err
	}
	defer producer.Close()
	value := make([]byte, recordBytes)
	if _, err := rand.Read(value); err != nil {
		return err
	}
	if _, _, err := send(producer, topic, value, batchRecords, numbers[2]); err != nil {
		return err
	}
	calls, elapsed, err := send(producer, topic, value, batchRecords, numbers[3])
	if err != nil {
		return err
	}
	records := float64(calls * batchRecords)
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"records_per_second": records / elapsed,
		"mb_per_second":      records * float64(recordBytes) / 1e6 / elapsed,
		"mean_ms":            elapsed / float64(calls) * 1e3,
	})
}

// The library's own settings, but for acknowledgements, which are what is measured.
func config() *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = "bench"
	config.Version = sarama.MaxVersion
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	return config
}

// Calls until so many seconds are over: how many, and the seconds they took.
func send(
	producer sarama.SyncProducer, topic string, value []byte, batchRecords int, seconds float64,
) (int, float64, error) {
	began := time.Now()
	for calls := 1; ; calls++ {
		// Made anew, since the producer keeps its own notes in them.
		messages := make([]*sarama.ProducerMessage, batchRecords)
		for number := range messages {
			messages[number] = &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(value)}
		}
		if err := producer.SendMessages(messages); err != nil {
			return 0, 0, err
		}
		if elapsed := time.Since(began).Seconds(); elapsed >= seconds {
			return calls, elapsed, nil
		}
	}
}
