package vdl;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;

/**
 * Kafka's own codec, asked over standard input, one line in, one line out.
 *
 * <pre>
 * message TAB version TAB hex TAB json   →  hex of the JSON encoded TAB hex of the bytes re-encoded
 * batch TAB codec TAB hex                →  records of the batch TAB hex of a batch built from them
 * </pre>
 *
 * or `unsupported` for a version these classes do not have, or `error TAB text`.
 */
public final class Oracle {
    private static final String PACKAGE = "org.apache.kafka.common.message.";
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", 4);
            try {
                out.println(parts[0].equals("batch")
                    ? Batches.answer(parts[1], HexFormat.of().parseHex(parts[2]))
                    : answer(parts[0], Short.parseShort(parts[1]), parts[2], parts[3]));
            } catch (ClassNotFoundException unknown) {
                out.println("unsupported");
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                out.println("error\t" + cause.toString().replaceAll("\\s+", " "));
            }
        }
        out.flush();
    }

    private static String answer(String name, short version, String hex, String json)
            throws Exception {
        Class<?> data = Class.forName(PACKAGE + dataClass(name));
        if (version < data.getField("LOWEST_SUPPORTED_VERSION").getShort(null)
                || version > data.getField("HIGHEST_SUPPORTED_VERSION").getShort(null)) {
            return "unsupported";
        }
        Class<?> converter = Class.forName(PACKAGE + dataClass(name) + "JsonConverter");
        Method read = converter.getMethod("read", JsonNode.class, short.class);
        Message fromJson = (Message) read.invoke(null, JSON.readTree(json), version);
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
        Message fromBytes = (Message) data.getConstructor(Readable.class, short.class)
            .newInstance(new ByteBufferAccessor(bytes), version);
        if (bytes.hasRemaining()) {
            throw new IllegalStateException(bytes.remaining() + " bytes left over");
        }
        return encode(fromJson, version) + "\t" + encode(fromBytes, version);
    }

    /** Requests, responses and headers have `Data` after their name; blobs do not. */
    private static String dataClass(String name) {
        return name.endsWith("Request") || name.endsWith("Response") || name.endsWith("Header")
            ? name + "Data" : name;
    }

    private static String encode(Message message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HexFormat.of().formatHex(buffer.array());
    }
}
