package vdl;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

/** Record batches: read with Kafka's reader, and written anew with its builder. */
final class Batches {
    private Batches() {
    }

    static String answer(String codec, byte[] bytes) {
        List<String> lines = new ArrayList<>();
        CompressionType type = CompressionType.forName(codec);
        ByteBuffer out = ByteBuffer.allocate(1024);
        MemoryRecordsBuilder builder = null;
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
            batch.ensureValid();
            if (batch.compressionType() != type) {
                throw new IllegalStateException("codec " + batch.compressionType());
            }
            builder = MemoryRecords.builder(
                out, RecordBatch.MAGIC_VALUE_V2, Compression.of(type).build(),
                TimestampType.CREATE_TIME, batch.baseOffset(), RecordBatch.NO_TIMESTAMP,
                batch.producerId(), batch.producerEpoch(), batch.baseSequence(),
                batch.isTransactional(), batch.partitionLeaderEpoch());
            for (Record record : batch) {
                lines.add(text(record));
                builder.appendWithOffset(record.offset(), record.timestamp(), record.key(),
                    record.value(), record.headers());
            }
        }
        if (builder == null) {
            throw new IllegalStateException("no batch");
        }
        ByteBuffer built = builder.build().buffer();
        byte[] result = new byte[built.remaining()];
        built.get(result);
        return String.join(";", lines) + "\t" + HexFormat.of().formatHex(result);
    }

    private static String text(Record record) {
        StringBuilder text = new StringBuilder();
        text.append(record.offset()).append(',').append(record.timestamp()).append(',')
            .append(hex(record.key())).append(',').append(hex(record.value()));
        for (Header header : record.headers()) {
            byte[] value = header.value();
            text.append(',').append(header.key()).append('=')
                .append(value == null ? "null" : HexFormat.of().formatHex(value));
        }
        return text.toString();
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return "null";
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
