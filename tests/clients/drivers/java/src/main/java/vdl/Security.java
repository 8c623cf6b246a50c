package vdl;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** How the clients are secured: tests/clients/drivers/security.py, in the Java client's words. */
final class Security {
    private static final String MODULES = "org.apache.kafka.common.security.";

    static final Map<String, Object> SETTINGS = settings();

    private Security() {}

    private static Map<String, Object> settings() {
        String text = System.getenv("VDL_TEST_SECURITY");
        try {
            return text == null ? Map.of() : settings(new ObjectMapper().readTree(text));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Map<String, Object> settings(JsonNode security) throws IOException {
        Map<String, Object> settings = new HashMap<>();
        settings.put("security.protocol", security.get("protocol").asText());
        if (security.has("ca")) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", security.get("ca").asText());
        }
        if (security.has("certificate")) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.certificate.chain", read(security.get("certificate")));
            settings.put("ssl.keystore.key", read(security.get("key")));
        }
        if (security.has("mechanism")) {
            String mechanism = security.get("mechanism").asText();
            settings.put("sasl.mechanism", mechanism);
            settings.put("sasl.jaas.config", jaas(mechanism, security));
        }
        if (security.has("token")) {
            String url = Path.of(security.get("token").asText()).toUri().toString();
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            System.setProperty(
                    "org.apache.kafka.sasl.oauthbearer.allowed.files",
                    security.get("token").asText());
            settings.put("sasl.oauthbearer.token.endpoint.url", url);
            settings.put(
                    "sasl.login.callback.handler.class",
                    MODULES + "oauthbearer.OAuthBearerLoginCallbackHandler");
        }
        return settings;
    }

    private static String jaas(String mechanism, JsonNode security) {
        if (mechanism.equals("OAUTHBEARER")) {
            return MODULES + "oauthbearer.OAuthBearerLoginModule required;";
        }
        String module =
                mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        String user = security.get("user").asText();
        String password = security.get("password").asText();
        return MODULES
                + module
                + " required username=\"" + user + "\" password=\"" + password + "\""
                + (security.has("tokenauth") ? " tokenauth=\"true\"" : "") + ";";
    }

    private static String read(JsonNode path) throws IOException {
        return Files.readString(Path.of(path.asText()));
    }
}
