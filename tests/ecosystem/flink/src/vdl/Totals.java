package vdl;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A Flink job on a cluster inside this JVM: reads GROUP-amounts ("name number" a record) up to its
 * end, adds up per name, writes "name total" for each record to GROUP-totals.
 *
 * Totals BOOTSTRAP GROUP GUARANTEE NAMING FAILURES. GUARANTEE and NAMING are those of Flink's sink
 * (DeliveryGuarantee, TransactionNamingStrategy). The job fails so many times between two
 * checkpoints, with records in open transactions, and goes on from the last one. Ends when the job
 * does; says "finished".
 */
public final class Totals {
    private static final int FAILS_AFTER_RECORDS = 100;
    private static final int PAUSES_EVERY_RECORDS = 4;
    private static final AtomicInteger failuresLeft = new AtomicInteger();
    /** Since the last failure. */
    private static final AtomicBoolean hasCheckpoint = new AtomicBoolean();
    /** Since the last checkpoint. */
    private static final AtomicInteger seen = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        DeliveryGuarantee guarantee = DeliveryGuarantee.valueOf(args[2]);
        failuresLeft.set(Integer.parseInt(args[4]));
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 100);
        settings.set(
            RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(100));
        StreamExecutionEnvironment job =
            StreamExecutionEnvironment.getExecutionEnvironment(settings);
        job.setParallelism(2);
        job.enableCheckpointing(500);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(args[0])
            .setTopics(args[1] + "-amounts")
            .setGroupId(args[1])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(args[0])
            .setDeliveryGuarantee(guarantee)
            .setTransactionalIdPrefix(args[1])
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(args[3]))
            .setProperty("transaction.timeout.ms", "600000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(args[1] + "-totals")
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "amounts")
            .map(new Slow())
            .keyBy(line -> line.split(" ")[0])
            .map(new Adder())
            .sinkTo(sink);
        job.execute();
        System.out.println("finished");
    }

    /**
     * Part of the source's task: where the next one paused, all records would stand in its queue,
     * and the first checkpoint behind them.
     */
    private static final class Slow implements MapFunction<String, String> {
        private int count;

        @Override
        public String map(String line) throws Exception {
            if (++count % PAUSES_EVERY_RECORDS == 0) {
                Thread.sleep(1);
            }
            return line;
        }
    }

    private static final class Adder extends RichMapFunction<String, String>
            implements CheckpointListener {
        private transient ValueState<Long> total;

        @Override
        public void open(OpenContext context) {
            total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Long.class));
        }

        @Override
        public String map(String line) throws Exception {
            if (seen.incrementAndGet() > FAILS_AFTER_RECORDS
                    && hasCheckpoint.compareAndSet(true, false) // one of the tasks, not both
                    && failuresLeft.getAndUpdate(left -> Math.max(0, left - 1)) > 0) {
                throw new IllegalStateException("fails in the middle, as it is to");
            }
            String[] words = line.split(" ");
            long before = total.value() == null ? 0 : total.value();
            total.update(before + Long.parseLong(words[1]));
            return words[0] + " " + total.value();
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            hasCheckpoint.set(true);
            seen.set(0);
        }
    }
}
