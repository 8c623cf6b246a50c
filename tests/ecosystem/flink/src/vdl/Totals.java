package vdl;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A Flink job on a cluster inside this JVM: reads "amounts" ("name number" a record) up to its end,
 * adds up per name, writes "name total" for each record to "totals".
 *
 * Totals BOOTSTRAP GROUP. Ends when the job does; says "finished".
 */
public final class Totals {
    public static void main(String[] args) throws Exception {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.getExecutionEnvironment();
        job.setParallelism(2);
        job.enableCheckpointing(500);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(args[0])
            .setTopics("amounts")
            .setGroupId(args[1])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(args[0])
            .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic("totals")
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "amounts")
            .keyBy(line -> line.split(" ")[0])
            .map(new Adder())
            .sinkTo(sink);
        job.execute();
        System.out.println("finished");
    }

    private static final class Adder extends RichMapFunction<String, String> {
        private transient ValueState<Long> total;

        @Override
        public void open(OpenContext context) {
            total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Long.class));
        }

        @Override
        public String map(String line) throws Exception {
            String[] words = line.split(" ");
            long before = total.value() == null ? 0 : total.value();
            total.update(before + Long.parseLong(words[1]));
            return words[0] + " " + total.value();
        }
    }
}
