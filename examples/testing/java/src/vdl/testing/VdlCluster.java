package vdl.testing;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A VDL cluster for tests, which fails on request. It needs the {@code vdl} command, or VDL_COMMAND with
 * another one, and no container.
 *
 * <pre>
 * try (VdlCluster cluster = VdlCluster.start("--nodes", "3")) {
 *   String topic = cluster.topic(1);
 *   cluster.run("kill", cluster.leader(topic, 0));
 * }
 * </pre>
 *
 * The servers end when the test's process does, by whatever cause. docs/testing.md has all commands.
 */
public final class VdlCluster implements AutoCloseable {
  private final Process process;
  private final Writer input;
  private final BufferedReader output;
  private final HttpClient http = HttpClient.newHttpClient();
  private final String bootstrap;
  private final String control;
  private final String token;

  private VdlCluster(Process process) {
    this.process = process;
    input = process.outputWriter(StandardCharsets.UTF_8);
    output = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    try {
      String first = answer();
      bootstrap = text(first, "bootstrap");
      control = text(first, "url");
      token = text(first, "token");
    } catch (RuntimeException error) {
      close();
      throw error;
    }
  }

  /** Starts a cluster; the options are those of {@code vdl test-server}. */
  public static VdlCluster start(String... options) {
    String vdl = System.getenv().getOrDefault("VDL_COMMAND", "vdl");
    List<String> command = new ArrayList<>(List.of(vdl.split(" ")));
    command.addAll(List.of("test-server", "--json"));
    command.addAll(Arrays.asList(options));
    try {
      return new VdlCluster(
          new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Addresses for {@code bootstrap.servers}. */
  public String bootstrap() {
    return bootstrap;
  }

  /** Creates a topic with a name of its own. */
  public String topic(int partitions) {
    return text(run("topic", partitions), "topic");
  }

  /** Returns the server that leads a partition, 0 if there is none. */
  public int leader(String topic, int partition) {
    return Integer.parseInt(field(run("leader", topic, partition), "leader", "(\\d+)"));
  }

  /** Runs a command, such as {@code run("partition", 1, 2)}, and returns its answer, as JSON. */
  public synchronized String run(String command, Object... words) {
    StringBuilder line = new StringBuilder(command);
    for (Object word : words) {
      line.append(' ').append(word);
    }
    try {
      input.write(line.append('\n').toString());
      input.flush();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return answer();
  }

  /**
   * Runs a command over HTTP, such as {@code post("/kill?server=2")}, and returns its answer. Any process
   * of this user that knows the address and the token can do the same.
   */
  public String post(String command) {
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(control + command))
            .header("Authorization", "Bearer " + token)
            .POST(HttpRequest.BodyPublishers.noBody())
            .build();
    try {
      return checked(http.send(request, HttpResponse.BodyHandlers.ofString()).body());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(error);
    }
  }

  /** Ends the servers and removes their data. */
  @Override
  public void close() {
    try {
      input.close();
      process.waitFor();
    } catch (IOException error) {
      process.destroyForcibly();
    } catch (InterruptedException error) {
      process.destroyForcibly();
      Thread.currentThread().interrupt();
    }
  }

  private String answer() {
    try {
      String line = output.readLine();
      if (line == null) {
        throw new IllegalStateException("vdl test-server ended");
      }
      return checked(line);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static String checked(String answer) {
    if (!answer.contains("\"ok\": true")) {
      throw new IllegalStateException(answer);
    }
    return answer;
  }

  private static String text(String json, String name) {
    return field(json, name, "\"([^\"]*)\"");
  }

  private static String field(String json, String name, String value) {
    Matcher found = Pattern.compile("\"" + name + "\": " + value).matcher(json);
    if (!found.find()) {
      throw new IllegalStateException("no " + name + " in " + json);
    }
    return found.group(1);
  }
}
