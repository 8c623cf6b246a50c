package vdl;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Some consumers of a share group in one process, until its input ends or it is killed.
 *
 * <p>What happens is written to a file, a line each, before anything follows from it: "D partition
 * offset count" for a record that was delivered for the count-th time, "A partition offset" for one
 * whose acknowledgement succeeded, "R" for one given back, "X" for one rejected, each with its count,
 * "F partition offset count why" for one whose acknowledgement failed. Ranges are written as
 * first-last.
 */
public final class ShareWorker {
  private static final AtomicBoolean RUNNING = new AtomicBoolean(true);

  private ShareWorker() {}

  /** Arguments: bootstrap, group, topic, consumers, file, percent given back, percent rejected. */
  public static void main(String[] args) throws Exception {
    int consumers = Integer.parseInt(args[3]);
    List<Thread> threads = new ArrayList<>();
    for (int number = 0; number < consumers; number++) {
      Path file = Path.of(args[4] + "-" + number);
      int seed = number;
      Thread thread = new Thread(() -> consume(args, file, seed));
      thread.start();
      threads.add(thread);
    }
    System.out.println("started");
    while (System.in.read() >= 0) {
      continue;
    }
    RUNNING.set(false);
    for (Thread thread : threads) {
      thread.join();
    }
    System.out.println("stopped");
  }

  private static void consume(String[] args, Path file, int seed) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", args[0]);
    settings.put("group.id", args[1]);
    settings.put("share.acknowledgement.mode", "explicit");
    settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
    settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
    Random random = new Random(seed);
    try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings);
        BufferedWriter log = Files.newBufferedWriter(file)) {
      consumer.subscribe(List.of(args[2]));
      while (RUNNING.get()) {
        step(consumer, log, random, Integer.parseInt(args[5]), Integer.parseInt(args[6]));
      }
    } catch (IOException | KafkaException error) {
      error.printStackTrace();
      System.exit(1);
    }
  }

  private static void step(
      KafkaShareConsumer<byte[], byte[]> consumer,
      BufferedWriter log,
      Random random,
      int releases,
      int rejects)
      throws IOException {
    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
    if (records.isEmpty()) {
      return;
    }
    Map<Integer, Ranges> delivered = new TreeMap<>();
    Map<Integer, Map<AcknowledgeType, Ranges>> said = new TreeMap<>();
    for (ConsumerRecord<byte[], byte[]> record : records) {
      int count = record.deliveryCount().orElse((short) -1);
      delivered
          .computeIfAbsent(record.partition(), key -> new Ranges())
          .add(record.offset(), " " + count);
      int drawn = random.nextInt(100);
      AcknowledgeType type =
          drawn < releases
              ? AcknowledgeType.RELEASE
              : drawn < releases + rejects ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
      consumer.acknowledge(record, type);
      said.computeIfAbsent(record.partition(), key -> new TreeMap<>())
          .computeIfAbsent(type, key -> new Ranges())
          .add(record.offset(), " " + count);
    }
    for (Map.Entry<Integer, Ranges> entry : delivered.entrySet()) {
      entry.getValue().write(log, "D " + entry.getKey() + " ");
    }
    log.flush();
    Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync();
    for (Map.Entry<TopicIdPartition, Optional<KafkaException>> entry : results.entrySet()) {
      int partition = entry.getKey().partition();
      if (entry.getValue().isPresent()) {
        String why = " " + entry.getValue().get().getClass().getSimpleName();
        for (Ranges one : said.getOrDefault(partition, Map.of()).values()) {
          one.write(log, "F " + partition + " ", why);
        }
        continue;
      }
      for (Map.Entry<AcknowledgeType, Ranges> one :
          said.getOrDefault(partition, Map.of()).entrySet()) {
        String letter =
            switch (one.getKey()) {
              case ACCEPT -> "A ";
              case RELEASE -> "R ";
              default -> "X ";
            };
        one.getValue().write(log, letter + partition + " ");
      }
    }
    log.flush();
  }

  /** Offsets as they came, neighbours together. */
  private static final class Ranges {
    private final List<String> lines = new ArrayList<>();
    private long first = -1;
    private long last = -2;
    private String tail = "";

    void add(long offset, String suffix) {
      if (offset == last + 1 && suffix.equals(tail)) {
        last = offset;
        return;
      }
      end();
      first = last = offset;
      tail = suffix;
    }

    private void end() {
      if (first >= 0) {
        lines.add(first + "-" + last + tail);
      }
    }

    void write(BufferedWriter log, String head) throws IOException {
      write(log, head, "");
    }

    void write(BufferedWriter log, String head, String end) throws IOException {
      end();
      first = -1;
      last = -2;
      for (String line : lines) {
        log.write(head + line + end + "\n");
      }
    }
  }
}
