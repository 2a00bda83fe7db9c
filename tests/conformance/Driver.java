package software.amazon.kinesis.leases;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledExecutorService;

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.slf4j.LoggerFactory;
import software.amazon.awssdk.services.kinesis.model.ChildShard;
import software.amazon.awssdk.services.kinesis.model.HashKeyRange;
import software.amazon.awssdk.services.kinesis.model.ResourceNotFoundException;
import software.amazon.awssdk.services.kinesis.model.SequenceNumberRange;
import software.amazon.awssdk.services.kinesis.model.Shard;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.assignment.LeaseAssignmentManager;
import software.amazon.kinesis.coordinator.assignment.VarianceBasedLeaseAssignmentDecider;
import software.amazon.kinesis.exceptions.internal.KinesisClientLibIOException;
import software.amazon.kinesis.leases.LeaseManagementConfig.WorkerUtilizationAwareAssignmentConfig;
import software.amazon.kinesis.leases.exceptions.LeasePendingDeletion;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.metrics.NullMetricsScope;
import software.amazon.kinesis.retrieval.AggregatorUtil;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.kpl.ExtendedSequenceNumber;
import software.amazon.kinesis.worker.metricstats.WorkerMetricStats;

/**
 * Answers questions by asking the KCL: a line of JSON in, {"area": name, "cases": [...]}, a line
 * out, an array with the answer to each case. It decides nothing itself. It is in the KCL's package,
 * for some of what it asks is not public.
 */
@SuppressWarnings("unchecked")
public final class Driver {
    private static final JsonNodeFactory NEW = JsonNodeFactory.instance;
    private static final AggregatorUtil AGGREGATES = new AggregatorUtil();

    private static final StreamIdentifier STREAM = StreamIdentifier.singleStreamInstance("stream");
    private static final ScheduledExecutorService NO_THREADS =
            fake(ScheduledExecutorService.class, (name, arguments) -> null);
    private static final Method TILES = tiles();
    private static final Class<?> VIEW = view();

    private static Method tiles() {
        try {
            Method found = HierarchicalShardSyncer.class.getDeclaredMethod("isHashRangeOfShardsComplete", List.class);
            found.setAccessible(true);
            return found;
        } catch (NoSuchMethodException error) {
            throw new IllegalStateException(error);
        }
    }

    private interface Question {
        JsonNode answer(JsonNode theCase) throws Exception;
    }

    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        ((Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.OFF);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = json.readTree(line);
            Question question = question(asked.get("area").asText());
            ArrayNode answers = NEW.arrayNode();
            for (JsonNode each : asked.get("cases")) {
                answers.add(answered(question, each));
            }
            out.write(json.writeValueAsBytes(answers));
            out.write('\n');
            out.flush();
        }
    }

    private static Question question(String area) {
        switch (area) {
            case "deaggregation":
                return Driver::deaggregation;
            case "checkpoints":
                return Driver::checkpoints;
            case "shard_sync":
                return Driver::shardSync;
            case "cleanup":
                return Driver::cleanup;
            case "assignment":
                return Driver::assignment;
            default:
                throw new IllegalArgumentException(area);
        }
    }

    /** What is thrown is an answer as well: the name of its class. */
    private static JsonNode answered(Question question, JsonNode theCase) {
        try {
            return question.answer(theCase);
        } catch (InvocationTargetException error) {
            return NEW.textNode(error.getCause().getClass().getSimpleName());
        } catch (Exception | LinkageError error) {
            return NEW.textNode(error.getClass().getSimpleName());
        }
    }

    /** [[partition key, explicit hash key, data, sub-sequence number, whether aggregated], ...]. */
    private static JsonNode deaggregation(JsonNode theCase) {
        KinesisClientRecord record = KinesisClientRecord.builder()
                .data(ByteBuffer.wrap(Base64.getDecoder().decode(theCase.get("data").asText())))
                .partitionKey(theCase.get("key").asText())
                .sequenceNumber("1")
                .build();
        JsonNode range = theCase.get("range");
        List<KinesisClientRecord> found = range.isNull()
                ? AGGREGATES.deaggregate(List.of(record))
                : AGGREGATES.deaggregate(List.of(record), range.get(0).asText(), range.get(1).asText());
        ArrayNode records = NEW.arrayNode();
        for (KinesisClientRecord each : found) {
            byte[] data = new byte[each.data().remaining()];
            each.data().get(data);
            records.addArray()
                    .add(each.partitionKey())
                    .add(each.explicitHashKey())
                    .add(Base64.getEncoder().encodeToString(data))
                    .add(each.subSequenceNumber())
                    .add(each.aggregated());
        }
        return records;
    }

    /** [sign of the comparison, whether equal]. */
    private static JsonNode checkpoints(JsonNode theCase) {
        ExtendedSequenceNumber one = checkpoint(theCase.get(0));
        ExtendedSequenceNumber other = checkpoint(theCase.get(1));
        return NEW.arrayNode().add(Integer.signum(one.compareTo(other))).add(one.equals(other));
    }

    private static ExtendedSequenceNumber checkpoint(JsonNode told) {
        return new ExtendedSequenceNumber(told.get(0).asText(), told.get(1).asLong());
    }

    /**
     * [[shard id, checkpoint, sub-sequence number, [parent, ...]], ...] in the order of the writes;
     * of an empty table: of shards that were listed at the initial position.
     */
    private static JsonNode shardSync(JsonNode theCase) throws Exception {
        List<Shard> shards = shards(theCase.get("shards"));
        List<Lease> leases = leases(theCase.get("leases"));
        if (leases.isEmpty() && !(boolean) TILES.invoke(null, shards)) {
            throw new KinesisClientLibIOException("hash range");
        }
        ArrayNode created = NEW.arrayNode();
        LeaseRefresher table = fake(LeaseRefresher.class, (name, arguments) -> {
            switch (name) {
                case "listLeases":
                    return leases;
                case "createLeaseIfNotExists":
                    Lease lease = (Lease) arguments[0];
                    ArrayNode told = created.addArray()
                            .add(lease.leaseKey())
                            .add(lease.checkpoint().sequenceNumber())
                            .add(lease.checkpoint().subSequenceNumber());
                    lease.parentShardIds().stream().sorted().forEach(told.addArray()::add);
                    return true;
                default:
                    throw new UnsupportedOperationException(name);
            }
        });
        ShardDetector stream = fake(ShardDetector.class, (name, arguments) -> {
            if (name.equals("streamIdentifier")) {
                return STREAM;
            }
            throw new UnsupportedOperationException(name);
        });
        String position = theCase.get("initial").asText();
        InitialPositionInStreamExtended initial = position.equals("AT_TIMESTAMP")
                ? InitialPositionInStreamExtended.newInitialPositionAtTimestamp(new Date(1))
                : InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.valueOf(position));
        new HierarchicalShardSyncer().checkAndCreateLeaseForNewShards(
                stream, table, initial, shards, false, new NullMetricsScope(), leases.isEmpty());
        return created;
    }

    /**
     * {finished lease: [whether deleted, [child that was learned, ...]]}, each decided on the same
     * table; what the service says of a shard's children, or that there is no such shard, is told.
     */
    private static JsonNode cleanup(JsonNode theCase) throws Exception {
        JsonNode answers = theCase.get("children");
        ObjectNode decisions = NEW.objectNode();
        for (Lease lease : leases(theCase.get("leases"))) {
            if (!lease.checkpoint().equals(ExtendedSequenceNumber.SHARD_END)) {
                continue;
            }
            Map<String, Lease> table = new HashMap<>();
            leases(theCase.get("leases")).forEach(each -> table.put(each.leaseKey(), each));
            ArrayNode decision = decisions.putArray(lease.leaseKey());
            ArrayNode learned = NEW.arrayNode();
            boolean[] deleted = {false};
            LeaseRefresher refresher = fake(LeaseRefresher.class, (name, arguments) -> {
                switch (name) {
                    case "getLease":
                        return table.get((String) arguments[0]);
                    case "deleteLease":
                        deleted[0] = true;
                        return null;
                    case "updateLeaseWithMetaInfo":
                        ((Lease) arguments[0]).childShardIds().stream().sorted().forEach(learned::add);
                        return null;
                    default:
                        throw new UnsupportedOperationException(name);
                }
            });
            LeaseCoordinator coordinator = fake(LeaseCoordinator.class, (name, arguments) -> refresher);
            ShardDetector stream = fake(ShardDetector.class, (name, arguments) -> {
                JsonNode children = answers.get((String) arguments[0]);
                if (!name.equals("getChildShards")) {
                    throw new UnsupportedOperationException(name);
                }
                if (children == null) {
                    throw new ExecutionException(ResourceNotFoundException.builder().build());
                }
                List<ChildShard> found = new ArrayList<>();
                children.forEach(each -> found.add(ChildShard.builder().shardId(each.asText()).build()));
                return found;
            });
            ShardInfo info = new ShardInfo(lease.leaseKey(), "", lease.parentShardIds(), lease.checkpoint());
            new LeaseCleanupManager(coordinator, new NullMetricsFactory(), NO_THREADS, true, 1, 1, 1)
                    .cleanupLease(new LeasePendingDeletion(STREAM, lease, info, stream), true, true);
            decision.add(deleted[0]).add(learned);
        }
        return decisions;
    }

    /** {lease without an owner: the worker that it is given to}. */
    private static JsonNode assignment(JsonNode theCase) throws Exception {
        LeaseAssignmentManager manager = new LeaseAssignmentManager(
                null, null, null, new WorkerUtilizationAwareAssignmentConfig(), "us", 10_000L,
                new NullMetricsFactory(), NO_THREADS, System::nanoTime, theCase.get("most").asInt(), null, 20_000L);
        List<WorkerMetricStats> workers = new ArrayList<>();
        Map<String, Set<Lease>> held = new HashMap<>();
        Map<String, Double> carried = new HashMap<>();
        for (JsonNode each : theCase.get("workers")) {
            Map<String, List<Double>> values = new HashMap<>();
            Map<String, List<Long>> ranges = new HashMap<>();
            each.get(1).fields().forEachRemaining(metric -> {
                values.put(metric.getKey(), List.of(metric.getValue().asDouble()));
                ranges.put(metric.getKey(), List.of(100L));
            });
            workers.add(WorkerMetricStats.builder()
                    .workerId(each.get(0).asText()).metricStats(values).operatingRange(ranges).build());
        }
        List<Lease> leases = new ArrayList<>();
        List<Lease> free = new ArrayList<>();
        double total = 0;
        for (JsonNode each : theCase.get("leases")) {
            Lease lease = new Lease();
            lease.leaseKey(each.get(0).asText());
            lease.leaseOwner(each.get(1).textValue());
            lease.throughputKBps(each.get(2).asDouble());
            lease.lastCounterIncrementNanos(0L);
            leases.add(lease);
            total += lease.throughputKBps();
            if (lease.leaseOwner() == null) {
                free.add(lease);
            }
            held.computeIfAbsent(lease.leaseOwner(), owner -> new HashSet<>()).add(lease);
            carried.merge(lease.leaseOwner(), lease.throughputKBps(), Double::sum);
        }
        Constructor<?> newView = VIEW.getDeclaredConstructors()[0];
        newView.setAccessible(true);
        Object view = newView.newInstance(manager);
        field(view, "leaseList").set(view, leases);
        field(view, "activeWorkerMetrics").set(view, workers);
        field(view, "targetAverageThroughput").set(view, total / Math.max(1, workers.size()));
        ((Map<String, Set<Lease>>) field(view, "workerToLeasesMap").get(view)).putAll(held);
        ((Map<String, Double>) field(view, "workerToTotalAssignedThroughputMap").get(view)).putAll(carried);
        Constructor<?> newDecider = VarianceBasedLeaseAssignmentDecider.class.getDeclaredConstructors()[0];
        newDecider.setAccessible(true);
        ((VarianceBasedLeaseAssignmentDecider) newDecider.newInstance(view, 60, 10, true))
                .assignExpiredOrUnassignedLeases(free);
        ObjectNode given = NEW.objectNode();
        ((Map<Lease, String>) field(view, "leaseToNewAssignedWorkerMap").get(view))
                .forEach((lease, worker) -> given.put(lease.leaseKey(), worker));
        return given;
    }

    private static Field field(Object view, String name) throws NoSuchFieldException {
        Field found = VIEW.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }

    private static Class<?> view() {
        for (Class<?> each : LeaseAssignmentManager.class.getDeclaredClasses()) {
            if (each.getSimpleName().equals("InMemoryStorageView")) {
                return each;
            }
        }
        throw new IllegalStateException("InMemoryStorageView");
    }

    private interface Call {
        Object answer(String name, Object[] arguments) throws Throwable;
    }

    private static <T> T fake(Class<T> type, Call call) {
        InvocationHandler handler = (proxy, method, arguments) -> call.answer(method.getName(), arguments);
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler));
    }

    /** Of [[id, parent, adjacent parent, first number, last number, first hash key, last hash key], ...]. */
    private static List<Shard> shards(JsonNode told) {
        List<Shard> shards = new ArrayList<>();
        for (JsonNode each : told) {
            shards.add(Shard.builder()
                    .shardId(each.get(0).textValue())
                    .parentShardId(each.get(1).textValue())
                    .adjacentParentShardId(each.get(2).textValue())
                    .sequenceNumberRange(SequenceNumberRange.builder()
                            .startingSequenceNumber(each.get(3).textValue())
                            .endingSequenceNumber(each.get(4).textValue())
                            .build())
                    .hashKeyRange(HashKeyRange.builder()
                            .startingHashKey(each.get(5).textValue())
                            .endingHashKey(each.get(6).textValue())
                            .build())
                    .build());
        }
        return shards;
    }

    /** Of [[key, checkpoint, [parent, ...], [child, ...], what the KCL is not asked with], ...]. */
    private static List<Lease> leases(JsonNode told) {
        List<Lease> leases = new ArrayList<>();
        for (JsonNode each : told) {
            Lease lease = new Lease();
            lease.leaseKey(each.get(0).asText());
            lease.checkpoint(new ExtendedSequenceNumber(each.get(1).asText()));
            lease.parentShardIds(texts(each.get(2)));
            lease.childShardIds(texts(each.get(3)));
            leases.add(lease);
        }
        return leases;
    }

    private static List<String> texts(JsonNode told) {
        List<String> texts = new ArrayList<>();
        told.forEach(each -> texts.add(each.asText()));
        return texts;
    }
}
