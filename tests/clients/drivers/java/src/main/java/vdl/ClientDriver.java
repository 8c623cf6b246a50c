package vdl;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DeleteConsumerGroupOffsetsResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Driver of the Java client. The protocol is that of tests/clients/driver.py: one JSON command a
 * line on standard input, one JSON answer a line on standard output. Compiles against 3.9 and 4.4.
 */
public final class ClientDriver {
    private static final Duration CALL_TIMEOUT = Duration.ofSeconds(20);
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    private final String bootstrap;
    private KafkaConsumer<byte[], byte[]> consumer;
    private KafkaProducer<byte[], byte[]> producer;

    private ClientDriver(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        ClientDriver driver = new ClientDriver(arguments[0]);
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                driver.run(JSON.readTree(line), answer);
            } catch (InvalidOffsetException error) {
                answer.removeAll();
                answer.put("failed", "no_offset").put("message", error.toString());
            } catch (Exception error) {
                answer.removeAll();
                answer.put("failed", "other").put("message", error.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
        driver.close();
    }

    private void run(JsonNode command, ObjectNode answer) throws Exception {
        switch (command.get("do").asText()) {
            case "hello" -> {
                answer.put("client", "kafka-clients").put("version", version());
            }
            case "connect" -> answer.put("error", connect());
            case "produce" -> produce(command, answer);
            case "init_transactions" -> initTransactions(command);
            case "transact" -> transact(command);
            case "end" -> end(command.get("commits").asBoolean());
            case "open" -> open(command);
            case "subscribe" -> consumer.subscribe(texts(command.get("topics")));
            case "subscribe_pattern" ->
                    consumer.subscribe(Pattern.compile(command.get("pattern").asText()));
            case "assign" -> consumer.assign(partitions(command));
            case "poll" -> poll(command, answer);
            case "pause" -> consumer.pause(partitions(command));
            case "resume" -> consumer.resume(partitions(command));
            case "seek" -> {
                TopicPartition where =
                        new TopicPartition(
                                command.get("topic").asText(), command.get("partition").asInt());
                consumer.seek(where, command.get("offset").asLong());
            }
            case "commit" -> consumer.commitSync(CALL_TIMEOUT);
            case "committed" -> committed(command, answer);
            case "delete_offsets" -> deleteOffsets(command, answer);
            case "create_partitions" -> createPartitions(command, answer);
            case "close" -> close();
            default -> throw new IllegalArgumentException(command.toString());
        }
    }

    private String connect() throws InterruptedException {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(Security.SETTINGS);
        settings.put("default.api.timeout.ms", 5_000);
        settings.put("request.timeout.ms", 4_000);
        try (Admin admin = Admin.create(settings)) {
            admin.describeCluster().nodes().get();
            return "";
        } catch (Exception error) {
            StringBuilder text = new StringBuilder();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                text.append(cause).append("; ");
            }
            return text.toString();
        }
    }

    private void initTransactions(JsonNode command) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(Security.SETTINGS);
        settings.put("transactional.id", command.get("transactional_id").asText());
        settings.put("max.block.ms", CALL_TIMEOUT.toMillis());
        producer =
                new KafkaProducer<>(
                        settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
    }

    private void transact(JsonNode command) throws Exception {
        producer.beginTransaction();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode fields : command.get("records")) {
            sent.add(
                    producer.send(
                            new ProducerRecord<>(
                                    fields.get("topic").asText(),
                                    fields.get("partition").asInt(),
                                    unhex(fields.get("key")),
                                    unhex(fields.get("value")))));
        }
        producer.flush();
        for (Future<RecordMetadata> future : sent) {
            future.get(CALL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
        }
        if (command.get("positions").asBoolean()) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (TopicPartition where : consumer.assignment()) {
                offsets.put(where, new OffsetAndMetadata(consumer.position(where)));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        }
        String end = command.get("end").asText();
        if (!end.isEmpty()) {
            end(end.equals("commit"));
        }
    }

    private void end(boolean commits) {
        if (commits) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }

    private void produce(JsonNode command, ObjectNode answer) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(Security.SETTINGS);
        settings.put("acks", "all");
        settings.put("compression.type", command.get("compression").asText());
        settings.put("enable.idempotence", command.get("idempotent").asBoolean());
        settings.put("batch.size", command.get("batch_bytes").asInt());
        settings.put("linger.ms", 5);
        settings.put("request.timeout.ms", 10_000);
        settings.put("delivery.timeout.ms", (int) CALL_TIMEOUT.toMillis());
        ArrayNode offsets = answer.putArray("offsets");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(
                        settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode fields : command.get("records")) {
                ProducerRecord<byte[], byte[]> record =
                        new ProducerRecord<>(
                                fields.get("topic").asText(),
                                fields.get("partition").asInt(),
                                fields.get("timestamp").asLong(),
                                unhex(fields.get("key")),
                                unhex(fields.get("value")));
                for (JsonNode header : fields.get("headers")) {
                    record.headers().add(header.get(0).asText(), unhex(header.get(1)));
                }
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : sent) {
                RecordMetadata metadata =
                        future.get(CALL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
                offsets.addArray().add(metadata.partition()).add(metadata.offset());
            }
        }
    }

    private void open(JsonNode command) {
        close();
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(Security.SETTINGS);
        settings.put("auto.offset.reset", command.get("reset").asText());
        settings.put("enable.auto.commit", false);
        settings.put("isolation.level", command.get("isolation").asText());
        settings.put("metadata.max.age.ms", 500);
        settings.put("fetch.max.wait.ms", 100);
        if (command.has("protocol")) {
            settings.put("group.protocol", command.get("protocol").asText());
        } else {
            settings.put("heartbeat.interval.ms", 500);
        }
        if (!command.get("group").isNull()) {
            settings.put("group.id", command.get("group").asText());
        }
        consumer =
                new KafkaConsumer<>(
                        settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void poll(JsonNode command, ObjectNode answer) {
        ArrayNode records = answer.putArray("records");
        Duration timeout = Duration.ofMillis(command.get("timeout_ms").asLong());
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(timeout)) {
            ObjectNode fields = records.addObject();
            fields.put("topic", record.topic()).put("partition", record.partition());
            fields.put("offset", record.offset()).put("timestamp", record.timestamp());
            fields.put("key", hex(record.key())).put("value", hex(record.value()));
            ArrayNode headers = fields.putArray("headers");
            for (Header header : record.headers()) {
                headers.addArray().add(header.key()).add(hex(header.value()));
            }
        }
        ArrayNode owned = answer.putArray("owned");
        for (TopicPartition where : consumer.assignment()) {
            owned.addArray().add(where.topic()).add(where.partition());
        }
    }

    private void committed(JsonNode command, ObjectNode answer) {
        Set<TopicPartition> wanted = new LinkedHashSet<>(partitions(command));
        Map<TopicPartition, OffsetAndMetadata> known = consumer.committed(wanted, CALL_TIMEOUT);
        ArrayNode offsets = answer.putArray("offsets");
        for (TopicPartition where : wanted) {
            OffsetAndMetadata found = known.get(where);
            if (found == null) {
                offsets.addNull();
            } else {
                offsets.add(found.offset());
            }
        }
    }

    private void deleteOffsets(JsonNode command, ObjectNode answer) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(Security.SETTINGS);
        settings.put("request.timeout.ms", 10_000);
        settings.put("default.api.timeout.ms", (int) CALL_TIMEOUT.toMillis());
        ArrayNode errors = answer.putArray("errors");
        try (Admin admin = Admin.create(settings)) {
            List<TopicPartition> wanted = partitions(command);
            DeleteConsumerGroupOffsetsResult result =
                    admin.deleteConsumerGroupOffsets(
                            command.get("group").asText(), new LinkedHashSet<>(wanted));
            for (TopicPartition where : wanted) {
                try {
                    result.partitionResult(where).get();
                    errors.add(0);
                } catch (ExecutionException error) {
                    errors.add(Errors.forException(error.getCause()).code());
                }
            }
        }
    }

    private void createPartitions(JsonNode command, ObjectNode answer) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(Security.SETTINGS);
        settings.put("request.timeout.ms", 10_000);
        settings.put("default.api.timeout.ms", (int) CALL_TIMEOUT.toMillis());
        NewPartitions growth = NewPartitions.increaseTo(command.get("count").asInt());
        try (Admin admin = Admin.create(settings)) {
            admin.createPartitions(Map.of(command.get("topic").asText(), growth)).all().get();
            answer.put("error", 0);
        } catch (ExecutionException error) {
            answer.put("error", Errors.forException(error.getCause()).code());
        }
    }

    private void close() {
        if (consumer != null) {
            consumer.close();
            consumer = null;
        }
    }

    private static String version() throws IOException {
        Properties properties = new Properties();
        try (InputStream file =
                KafkaConsumer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }

    private static List<String> texts(JsonNode array) {
        List<String> found = new ArrayList<>();
        array.forEach(text -> found.add(text.asText()));
        return found;
    }

    private static List<TopicPartition> partitions(JsonNode command) {
        List<TopicPartition> found = new ArrayList<>();
        for (JsonNode pair : command.get("partitions")) {
            found.add(new TopicPartition(pair.get(0).asText(), pair.get(1).asInt()));
        }
        return found;
    }

    private static byte[] unhex(JsonNode text) {
        return text.isNull() ? null : HEX.parseHex(text.asText());
    }

    private static String hex(byte[] data) {
        return data == null ? null : HEX.formatHex(data);
    }
}
