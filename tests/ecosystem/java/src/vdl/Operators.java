package vdl;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.PartitionReassignment;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RaftVoterEndpoint;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The calls of Kafka's AdminClient with which Cruise Control and Strimzi run a cluster: one line an
 * answer, without what differs between two clusters that answer alike (addresses, paths, times).
 */
public final class Operators {
  private static final String TOPIC = "operated";
  private static final List<Integer> SERVERS = List.of(1, 2, 3);
  private static final int RECORDS = 40;
  private static final int RECORD_BYTES = 60_000;
  private static final String LEADER_RATE = "leader.replication.throttled.rate";
  private static final String FOLLOWER_RATE = "follower.replication.throttled.rate";
  private static final String LEADER_REPLICAS = "leader.replication.throttled.replicas";
  private static final String FOLLOWER_REPLICAS = "follower.replication.throttled.replicas";

  private final Admin admin;

  private Operators(Admin admin) {
    this.admin = admin;
  }

  /** Arguments: bootstrap servers. */
  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", arguments[0]);
    try (Admin admin = Admin.create(settings)) {
      Operators operators = new Operators(admin);
      operators.create(settings);
      operators.cluster();
      operators.quorum();
      operators.throttles();
      operators.refusedMoves();
      operators.moves();
      operators.elections();
      operators.logDirs();
      operators.settings();
    }
  }

  private void create(Properties settings) throws Exception {
    Map<Integer, List<Integer>> replicas =
        Map.of(0, List.of(1, 2), 1, List.of(2, 3), 2, List.of(3, 1));
    admin.createTopics(List.of(new NewTopic(TOPIC, replicas))).all().get();
    Properties producing = new Properties();
    producing.putAll(settings);
    // One record a batch: the first batch of a move passes any throttle.
    producing.put("batch.size", "0");
    ByteArraySerializer bytes = new ByteArraySerializer();
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(producing, bytes, bytes)) {
      for (int number = 0; number < RECORDS; number++) {
        producer.send(new ProducerRecord<>(TOPIC, 0, null, new byte[RECORD_BYTES])).get();
      }
    }
  }

  private void cluster() throws Exception {
    var found = admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true));
    say("cluster.id", !found.clusterId().get().isEmpty());
    say("cluster.controller", SERVERS.contains(found.controller().get().id()));
    for (Node node : sorted(found.nodes().get(), Node::id)) {
      say("cluster.node." + node.id(), node.rack(), node.isFenced(), node.hasRack());
    }
    say("cluster.operations", found.authorizedOperations().get());
    var operations = new DescribeClusterOptions().includeAuthorizedOperations(true);
    say("cluster.operations.asked",
        new TreeSet<>(admin.describeCluster(operations).authorizedOperations().get()));
    var features = admin.describeFeatures().featureMetadata().get();
    say("features.supported", new TreeSet<>(features.supportedFeatures().keySet()));
    say("features.epoch", features.finalizedFeaturesEpoch().isPresent());
    say("features.levels", List.of("group.version", "transaction.version", "share.version")
        .stream().map(name -> features.finalizedFeatures().get(name)).toList());
    say("unregister.unknown", error(admin.unregisterBroker(9).all()));
  }

  private void quorum() throws Exception {
    QuorumInfo found = admin.describeMetadataQuorum().quorumInfo().get();
    say("quorum.voters", ids(found.voters()));
    say("quorum.observers", ids(found.observers()));
    say("quorum.leader", SERVERS.contains(found.leaderId()), found.leaderEpoch() > 0);
    say("quorum.watermark", found.highWatermark() > 0);
    say("quorum.nodes", new TreeSet<>(found.nodes().keySet()));
    long end = found.voters().stream().mapToLong(QuorumInfo.ReplicaState::logEndOffset).max().getAsLong();
    say("quorum.end", end >= found.highWatermark());
    for (QuorumInfo.ReplicaState one : found.voters()) {
      long now = System.currentTimeMillis();
      say("quorum.voter." + one.replicaId(), one.logEndOffset() > 0,
          Math.abs(now - one.lastFetchTimestamp().orElse(0)) < 60_000,
          Math.abs(now - one.lastCaughtUpTimestamp().orElse(0)) < 60_000);
    }
    say("quorum.add", error(admin.addRaftVoter(9, Uuid.randomUuid(),
        Set.of(new RaftVoterEndpoint("CONTROLLER", "127.0.0.1", 9))).all()));
    say("quorum.remove", error(admin.removeRaftVoter(1, Uuid.randomUuid()).all()));
  }

  /** Throttles as Cruise Control sets, extends and removes them. */
  private void throttles() throws Exception {
    for (String name : List.of(LEADER_RATE, FOLLOWER_RATE)) {
      say("throttle.none", settled(broker(1), name, null));
      say("throttle.set", alter(broker(1), name, "1000000", OpType.SET));
      say("throttle.is", settled(broker(1), name, "1000000"));
      say("throttle.bad", alter(broker(1), name, "-1", OpType.SET));
      say("throttle.worse", alter(broker(1), name, "fast", OpType.SET));
      say("throttle.append", alter(broker(1), name, "2", OpType.APPEND));
      say("throttle.delete", alter(broker(1), name, null, OpType.DELETE));
      say("throttle.again", alter(broker(1), name, null, OpType.DELETE));
      // Cruise Control waits until a throttle that it removed has no value.
      say("throttle.none", settled(broker(1), name, null));
    }
    ConfigResource everyone = new ConfigResource(ConfigResource.Type.BROKER, "");
    say("throttle.default", alter(everyone, LEADER_RATE, "1000000", OpType.SET));
    say("throttle.default.is", settled(broker(1), LEADER_RATE, "1000000"));
    say("throttle.default.gone", alter(everyone, LEADER_RATE, null, OpType.DELETE));
    for (String name : List.of(LEADER_REPLICAS, FOLLOWER_REPLICAS)) {
      say("replicas.none", settled(topic(), name, ""));
      say("replicas.append", alter(topic(), name, "0:1,0:2", OpType.APPEND),
          settled(topic(), name, "0:1,0:2"));
      say("replicas.twice", alter(topic(), name, "0:2,1:3", OpType.APPEND),
          settled(topic(), name, "0:1,0:2,1:3"));
      say("replicas.subtract", alter(topic(), name, "0:1", OpType.SUBTRACT),
          settled(topic(), name, "0:2,1:3"));
      say("replicas.empty", alter(topic(), name, "", OpType.SET),
          settled(topic(), name, ""));
      say("replicas.all", alter(topic(), name, "*", OpType.SET),
          settled(topic(), name, "*"));
      say("replicas.bad", alter(topic(), name, "0-1", OpType.SET),
          settled(topic(), name, "*"));
      say("replicas.delete", alter(topic(), name, null, OpType.DELETE));
      say("replicas.none", settled(topic(), name, ""));
    }
    say("configs.unknown", alter(new ConfigResource(ConfigResource.Type.TOPIC, "none"),
        LEADER_REPLICAS, "0:1", OpType.SET));
  }

  private void refusedMoves() throws Exception {
    Map<String, List<Integer>> asked = new LinkedHashMap<>();
    asked.put("same", List.of(1, 2));
    asked.put("empty", List.of());
    asked.put("twice", List.of(1, 1));
    asked.put("negative", List.of(-1, 2));
    asked.put("unknown", List.of(1, 9));
    for (var one : asked.entrySet()) {
      say("move." + one.getKey(), move(new TopicPartition(TOPIC, 0), one.getValue()));
    }
    say("move.no-topic", move(new TopicPartition("none", 0), List.of(1, 2)));
    say("move.no-partition", move(new TopicPartition(TOPIC, 9), List.of(1, 2)));
    say("move.none-to-cancel", move(new TopicPartition(TOPIC, 0), null));
    say("moves.none", admin.listPartitionReassignments().reassignments().get());
    say("moves.none-of", error(admin.listPartitionReassignments(
        Set.of(new TopicPartition("none", 0))).reassignments()));
  }

  /** A move that a throttle holds: seen in progress, cancelled, and made without the throttle. */
  private void moves() throws Exception {
    TopicPartition moved = new TopicPartition(TOPIC, 0);
    alter(topic(), LEADER_REPLICAS, "0:1,0:2", OpType.SET);
    alter(topic(), FOLLOWER_REPLICAS, "0:3", OpType.SET);
    for (int server : SERVERS) {
      alter(broker(server), LEADER_RATE, "1", OpType.SET);
      alter(broker(server), FOLLOWER_RATE, "1", OpType.SET);
    }
    for (int server : SERVERS) {
      settled(broker(server), LEADER_RATE, "1");
      settled(broker(server), FOLLOWER_RATE, "1");
    }
    say("move", move(moved, List.of(1, 3)));
    say("move.listed", told(inProgress().get(moved)));
    say("move.listed.of", told(admin.listPartitionReassignments(Set.of(moved)).reassignments()
        .get().get(moved)));
    say("move.described", new TreeSet<>(replicas(moved)));
    say("move.changed", move(moved, List.of(3, 2)), told(inProgress().get(moved)));
    say("move.cancelled", move(moved, null));
    await(() -> inProgress().isEmpty());
    say("move.after", new TreeSet<>(replicas(moved)));
    for (int server : SERVERS) {
      alter(broker(server), LEADER_RATE, null, OpType.DELETE);
      alter(broker(server), FOLLOWER_RATE, null, OpType.DELETE);
      settled(broker(server), FOLLOWER_RATE, null);
    }
    alter(topic(), LEADER_REPLICAS, null, OpType.DELETE);
    alter(topic(), FOLLOWER_REPLICAS, null, OpType.DELETE);
    say("move.again", move(moved, List.of(1, 3)));
    await(() -> inProgress().isEmpty() && replicas(moved).equals(List.of(1, 3)));
    say("move.done", replicas(moved));
    say("move.more", move(moved, List.of(1, 3, 2)));
    await(() -> inProgress().isEmpty() && replicas(moved).equals(List.of(1, 3, 2)));
    await(() -> admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).partitions()
        .get(0).isr().size() == 3);
    say("move.order", move(moved, List.of(3, 1, 2)));
    await(() -> inProgress().isEmpty() && replicas(moved).equals(List.of(3, 1, 2)));
    say("move.ordered", replicas(moved));
  }

  private void elections() throws Exception {
    TopicPartition moved = new TopicPartition(TOPIC, 0);
    say("elect", elected(ElectionType.PREFERRED, Set.of(moved)));
    await(() -> leader(moved) == 3);
    say("elect.leader", leader(moved));
    say("elect.again", elected(ElectionType.PREFERRED, Set.of(moved)));
    say("elect.unknown", elected(ElectionType.PREFERRED,
        Set.of(new TopicPartition(TOPIC, 9), new TopicPartition("none", 0))));
    say("elect.unclean", elected(ElectionType.UNCLEAN, Set.of(moved)));
    await(() -> elected(ElectionType.PREFERRED, null).isEmpty());
    say("elect.all", elected(ElectionType.PREFERRED, null));
    say("elect.unclean.all", elected(ElectionType.UNCLEAN, null));
  }

  private void logDirs() throws Exception {
    var found = admin.describeLogDirs(List.of(1, 2, 3)).allDescriptions().get();
    for (int server : SERVERS) {
      for (var one : found.get(server).values()) {
        Map<String, String> replicas = new TreeMap<>();
        one.replicaInfos().forEach((where, info) -> {
          if (where.topic().equals(TOPIC)) {
            replicas.put(where.toString(), info.offsetLag() + " " + info.isFuture() + " "
                + (info.size() > 1_000_000));
          }
        });
        say("dir." + server, one.error(), one.totalBytes().orElse(0) > 0,
            one.usableBytes().orElse(0) > 0, replicas);
      }
    }
    TopicPartitionReplica replica = new TopicPartitionReplica(TOPIC, 0, 1);
    var places = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
    say("dir.of", places.getCurrentReplicaLogDir() != null, places.getCurrentReplicaOffsetLag(),
        places.getFutureReplicaLogDir(), places.getFutureReplicaOffsetLag());
    String here = places.getCurrentReplicaLogDir();
    say("dir.same", error(admin.alterReplicaLogDirs(Map.of(replica, here)).all()));
    say("dir.other", error(admin.alterReplicaLogDirs(Map.of(replica, "/none")).all()));
  }

  private void settings() throws Exception {
    for (String name : List.of("log.cleaner.threads", "message.max.bytes", "num.partitions",
        "auto.create.topics.enable", "node.id", "compression.type",
        "unclean.leader.election.enable")) {
      say("setting." + name, entry(broker(1), name));
    }
    for (String name : List.of("cleanup.policy", "compression.type", "max.message.bytes")) {
      say("topic." + name, entry(topic(), name));
    }
    say("setting.not-dynamic", alter(broker(1), "node.id", "9", OpType.SET));
    say("setting.no-topic", error(admin.describeConfigs(List.of(
        new ConfigResource(ConfigResource.Type.TOPIC, "none"))).all()));
  }

  // --- answers ----------------------------------------------------------------------------------
  private String alter(ConfigResource resource, String name, String value, OpType type) {
    var change = new AlterConfigOp(new ConfigEntry(name, value), type);
    return error(admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
  }

  private String entry(ConfigResource resource, String name) throws Exception {
    ConfigEntry one = admin.describeConfigs(List.of(resource),
        new DescribeConfigsOptions().includeSynonyms(true)).all().get().get(resource).get(name);
    return one == null ? "none" : one.name() + "=" + one.value() + " " + one.source() + " "
        + one.type() + " readOnly=" + one.isReadOnly() + " sensitive=" + one.isSensitive() + " "
        + one.synonyms().stream().map(s -> s.name() + ":" + s.source()).toList();
  }

  /** The entry of a setting once it has a value: a server applies it after the answer. */
  private String settled(ConfigResource resource, String name, String value) throws Exception {
    await(() -> {
      ConfigEntry one =
          admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name);
      return value == null ? one == null : one != null && value.equals(one.value());
    });
    return entry(resource, name);
  }

  private String move(TopicPartition where, List<Integer> servers) {
    Optional<NewPartitionReassignment> asked;
    try {
      asked = Optional.ofNullable(servers).map(NewPartitionReassignment::new);
    } catch (IllegalArgumentException error) {
      return error.getMessage();
    }
    return error(admin.alterPartitionReassignments(Map.of(where, asked)).all());
  }

  private Map<TopicPartition, PartitionReassignment> inProgress() throws Exception {
    return admin.listPartitionReassignments().reassignments().get();
  }

  private static String told(PartitionReassignment one) {
    return one == null ? "none" : new TreeSet<>(one.replicas()) + " adding "
        + one.addingReplicas() + " removing " + one.removingReplicas();
  }

  private List<Integer> replicas(TopicPartition where) throws Exception {
    return admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).partitions()
        .get(where.partition()).replicas().stream().map(Node::id).toList();
  }

  private int leader(TopicPartition where) throws Exception {
    Node found = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).partitions()
        .get(where.partition()).leader();
    return found == null ? -1 : found.id();
  }

  private Map<String, String> elected(ElectionType type, Set<TopicPartition> wheres)
      throws Exception {
    Map<String, String> found = new TreeMap<>();
    admin.electLeaders(type, wheres).partitions().get().forEach((where, error) -> found.put(
        where.toString(), error.map(one -> one.getClass().getSimpleName()).orElse("elected")));
    return found;
  }

  private static String error(KafkaFuture<?> asked) {
    try {
      asked.get();
      return "done";
    } catch (ExecutionException error) {
      return error.getCause().getClass().getSimpleName();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static ConfigResource broker(int server) {
    return new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(server));
  }

  private static ConfigResource topic() {
    return new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
  }

  private static Collection<Integer> ids(List<QuorumInfo.ReplicaState> states) {
    return states.stream().map(QuorumInfo.ReplicaState::replicaId)
        .collect(Collectors.toCollection(TreeSet::new));
  }

  private static <T> List<T> sorted(
      Collection<T> some, java.util.function.ToIntFunction<T> key) {
    List<T> found = new ArrayList<>(some);
    found.sort(java.util.Comparator.comparingInt(key));
    return found;
  }

  private interface Condition {
    boolean holds() throws Exception;
  }

  private static void await(Condition condition) throws Exception {
    long until = System.nanoTime() + 60_000_000_000L;
    while (!condition.holds()) {
      if (System.nanoTime() > until) {
        say("waited in vain");
        return;
      }
      Thread.sleep(100);
    }
  }

  private static void say(String name, Object... values) {
    List<String> words = new ArrayList<>();
    for (Object value : values) {
      words.add(String.valueOf(value));
    }
    System.out.println(name + " " + String.join(" ", words));
  }
}
