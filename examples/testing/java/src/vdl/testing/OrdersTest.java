package vdl.testing;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A test of an application against a cluster that fails. Any test framework can run it. */
public final class OrdersTest {
  private OrdersTest() {}

  public static void main(String[] arguments) throws Exception {
    try (VdlCluster cluster = VdlCluster.start()) {
      ordersSurviveTheirLeader(cluster);
      wrongCommandIsAnError(cluster);
    }
    System.out.println("passed");
  }

  /** The application: returns when the order is safe. */
  private static void place(Producer<String, String> producer, String topic, String order)
      throws Exception {
    producer.send(new ProducerRecord<>(topic, order)).get();
  }

  private static void ordersSurviveTheirLeader(VdlCluster cluster) throws Exception {
    String topic = cluster.topic(1);
    Properties settings = new Properties();
    settings.put("bootstrap.servers", cluster.bootstrap());
    settings.put("group.id", topic);
    settings.put("auto.offset.reset", "earliest");
    try (Producer<String, String> producer =
        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      place(producer, topic, "before");
      cluster.post("/kill?server=" + cluster.leader(topic, 0));
      place(producer, topic, "after");
    }
    cluster.run("restore");

    List<String> found = new ArrayList<>();
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of(topic));
      long end = System.nanoTime() + Duration.ofMinutes(1).toNanos();
      while (found.size() < 2 && System.nanoTime() < end) {
        consumer.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
      }
    }
    check(found.equals(List.of("before", "after")), "found " + found);
  }

  private static void wrongCommandIsAnError(VdlCluster cluster) {
    try {
      cluster.post("/kill?server=9");
    } catch (IllegalStateException error) {
      check(error.getMessage().contains("there is no server 9"), error.getMessage());
      return;
    }
    throw new AssertionError("server 9 was killed");
  }

  private static void check(boolean condition, String problem) {
    if (!condition) {
      throw new AssertionError(problem);
    }
  }
}
