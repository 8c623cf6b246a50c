package vdl;

import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;

/**
 * A Kafka Streams program: counts the words of "lines" into "counts", and joins "left" with "right"
 * into "joined" where their times differ by ten seconds at most. Both keep state in RocksDB and in
 * changelog topics.
 *
 * Topology BOOTSTRAP APPLICATION STATE_DIRECTORY REPLICATION GUARANTEE PREFIX. The names of all
 * topics begin with the prefix. With "exactly_once_v2" every count is told, not only the last ones.
 * Says "running" when it does; ends, and commits what it did, when its standard input ends.
 */
public final class Topology {
    private static final Duration WINDOW = Duration.ofSeconds(10);

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, args[3]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        settings.put("auto.offset.reset", "earliest");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[4]);
        if (args[4].equals(StreamsConfig.EXACTLY_ONCE_V2)) {
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
            // Who is killed is not waited for any longer.
            settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6_000);
        }
        String prefix = args[5];

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(prefix + "lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(prefix + "counts", Produced.with(Serdes.String(), Serdes.String()));
        KStream<String, String> left = builder.stream(prefix + "left");
        KStream<String, String> right = builder.stream(prefix + "right");
        left.join(
                right,
                (one, other) -> one + "|" + other,
                JoinWindows.ofTimeDifferenceAndGrace(WINDOW, Duration.ofHours(1)))
            .to(prefix + "joined");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch failed = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                System.out.println("running");
            } else if (now == KafkaStreams.State.ERROR) {
                System.out.println("failed");
                failed.countDown();
            }
        });
        streams.start();
        while (System.in.read() >= 0) {
            // nothing is said to this program but that it shall end
        }
        boolean closed = streams.close(Duration.ofSeconds(60));
        System.out.println(closed && failed.getCount() == 1 ? "closed" : "failed");
    }
}
