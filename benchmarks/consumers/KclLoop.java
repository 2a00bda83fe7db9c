import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.http.Protocol;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * The Java KCL's Scheduler, polling, a checkpoint per shard a second; asked line by line as
 * protocol.py says. The process and its clients live on from run to run, so it becomes warm.
 *
 * CPU time is taken from the first shard that it begins to read: what comes before, the sync of
 * shards and the election of a leader, a worker does once in its life, and this one in every run.
 */
public final class KclLoop {
    private static final int SHARD_BYTES = 2;
    private static final long FAILOVER_MS = 3_000;
    // The least that the KCL allows.
    private static final long IDLE_MS = PollingConfig.MIN_IDLE_MILLIS_BETWEEN_READS;
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final KinesisAsyncClient kinesis;
    private final DynamoDbAsyncClient dynamodb;
    private final CloudWatchAsyncClient cloudwatch;

    private KclLoop(URI endpoint) {
        kinesis = at(KinesisAsyncClient.builder(), endpoint)
                .httpClientBuilder(NettyNioAsyncHttpClient.builder().protocol(Protocol.HTTP1_1))
                .build();
        dynamodb = at(DynamoDbAsyncClient.builder(), endpoint).build();
        cloudwatch = at(CloudWatchAsyncClient.builder(), endpoint).build();
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        KclLoop loop = new KclLoop(URI.create(System.getenv("AWS_ENDPOINT_URL")));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(json.writeValueAsString(loop.consume(json.readTree(line))));
            answers.flush();
        }
        System.exit(0);
    }

    private Map<String, Object> consume(JsonNode task) throws Exception {
        Run run = new Run(task.get("records").asLong(), task.get("checkpoint_ms").asLong());
        long began = System.nanoTime();
        String stream = task.get("stream").asText();
        ConfigsBuilder all = new ConfigsBuilder(
                new SingleStreamTracker(
                        stream,
                        InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON)),
                task.get("lease_table").asText(),
                kinesis,
                dynamodb,
                cloudwatch,
                "java-1",
                () -> new Processor(run));
        var leases = all.leaseManagementConfig().failoverTimeMillis(FAILOVER_MS);
        // Metrics of the worker would be read off EC2's service.
        leases.workerUtilizationAwareAssignmentConfig().disableWorkerMetrics(true);
        Scheduler scheduler = new Scheduler(
                all.checkpointConfig(),
                all.coordinatorConfig(),
                leases,
                all.lifecycleConfig(),
                all.metricsConfig().metricsFactory(new NullMetricsFactory()),
                all.processorConfig(),
                all.retrievalConfig()
                        .retrievalSpecificConfig(
                                new PollingConfig(stream, kinesis).idleTimeBetweenReadsInMillis(IDLE_MS)));
        Thread running = new Thread(scheduler, "scheduler");
        running.start();
        run.done.await();
        long ended = SYSTEM.getProcessCpuTime();
        double wall = (System.nanoTime() - began) / 1e9;
        scheduler.startGracefulShutdown().get(60, TimeUnit.SECONDS);
        running.join(60_000);
        return Map.of(
                "cpu_s", (ended - run.firstCpu.get()) / 1e9,
                "wall_s", wall,
                "records", run.count(),
                "digests", run.digests());
    }

    private static <B extends AwsClientBuilder<B, C>, C> B at(B builder, URI endpoint) {
        return builder.endpointOverride(endpoint)
                .region(Region.US_EAST_1)
                .credentialsProvider(EnvironmentVariableCredentialsProvider.create());
    }

    /** What was seen, and when it is all. */
    private static final class Run {
        final CountDownLatch done = new CountDownLatch(1);
        final AtomicLong firstCpu = new AtomicLong();
        final AtomicLong left;
        final long checkpointMs;
        final Map<String, List<ByteBuffer>> seen = new TreeMap<>();

        Run(long records, long checkpointMs) {
            left = new AtomicLong(records);
            this.checkpointMs = checkpointMs;
        }

        synchronized List<ByteBuffer> of(String shard) {
            return seen.computeIfAbsent(shard, any -> new ArrayList<>());
        }

        synchronized long count() {
            return seen.values().stream().mapToLong(List::size).sum();
        }

        synchronized Map<String, String> digests() throws Exception {
            Map<String, String> found = new TreeMap<>();
            for (List<ByteBuffer> shard : seen.values()) {
                MessageDigest digest = MessageDigest.getInstance("SHA-256");
                for (int index = 0; index < shard.size(); index++) {
                    if (index > 0) {
                        digest.update((byte) '|');
                    }
                    digest.update(shard.get(index).duplicate());
                }
                if (!shard.isEmpty()) {
                    byte[] name = new byte[SHARD_BYTES];
                    shard.get(0).duplicate().get(name);
                    found.put(new String(name, StandardCharsets.UTF_8), HexFormat.of().formatHex(digest.digest()));
                }
            }
            return found;
        }
    }

    private static final class Processor implements ShardRecordProcessor {
        private final Run run;
        private List<ByteBuffer> seen;
        private long storedNs = System.nanoTime();

        Processor(Run run) {
            this.run = run;
        }

        @Override
        public void initialize(InitializationInput given) {
            run.firstCpu.compareAndSet(0, SYSTEM.getProcessCpuTime());
            seen = run.of(given.shardId());
        }

        @Override
        public void processRecords(ProcessRecordsInput given) {
            if (given.records().isEmpty()) {
                return;
            }
            for (KinesisClientRecord record : given.records()) {
                seen.add(record.data());
            }
            boolean isLast = run.left.addAndGet(-given.records().size()) <= 0;
            if (isLast || System.nanoTime() - storedNs >= run.checkpointMs * 1_000_000) {
                storedNs = System.nanoTime();
                checkpoint(given.checkpointer());
            }
            if (isLast) {
                run.done.countDown();
            }
        }

        @Override
        public void leaseLost(LeaseLostInput given) {}

        @Override
        public void shardEnded(ShardEndedInput given) {
            checkpoint(given.checkpointer());
        }

        @Override
        public void shutdownRequested(ShutdownRequestedInput given) {
            checkpoint(given.checkpointer());
        }

        private static void checkpoint(RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint();
            } catch (software.amazon.kinesis.exceptions.ShutdownException lost) {
                // The lease is another's.
            } catch (software.amazon.kinesis.exceptions.InvalidStateException
                    | software.amazon.kinesis.exceptions.ThrottlingException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
