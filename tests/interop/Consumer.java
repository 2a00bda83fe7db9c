import java.io.FileOutputStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
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
import software.amazon.kinesis.common.StreamConfig;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.FormerStreamsLeasesDeletionStrategy;
import software.amazon.kinesis.processor.MultiStreamTracker;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.processor.StreamTracker;
import software.amazon.kinesis.retrieval.RetrievalSpecificConfig;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * A consumer on the KCL's Scheduler with its default settings: it writes down what it is given, one
 * line a call, in the form of the demo's ledger, and shuts down in order once its standard input
 * ends. A stream that is named as account:name:epoch makes it a consumer of several, by commas. It
 * polls; with -Dconsumer=ARN records are pushed by that consumer, and if it is empty, by one of its
 * own, which it registers.
 */
public final class Consumer {
    public static void main(String[] given) throws Exception {
        URI endpoint = URI.create(given[0]);
        String stream = given[1];
        String application = given[2];
        String worker = given[3];
        FileOutputStream ledger = new FileOutputStream(given[4], true);
        InitialPositionInStreamExtended start =
                InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON);
        String consumer = System.getProperty("consumer");
        Protocol protocol = consumer == null ? Protocol.HTTP1_1 : Protocol.HTTP2;
        KinesisAsyncClient kinesis = at(KinesisAsyncClient.builder(), endpoint)
                .httpClientBuilder(NettyNioAsyncHttpClient.builder().protocol(protocol))
                .build();
        boolean isOne = stream.indexOf(':') < 0;
        StreamTracker tracker = isOne ? new SingleStreamTracker(stream, start) : new Several(stream, start);
        RetrievalSpecificConfig reading = isOne ? new PollingConfig(stream, kinesis) : new PollingConfig(kinesis);
        if (consumer != null) {
            reading = new FanOutConfig(kinesis)
                    .streamName(stream)
                    .applicationName(application)
                    .consumerArn(consumer.isEmpty() ? null : consumer);
        }
        ConfigsBuilder all = new ConfigsBuilder(
                tracker,
                application,
                kinesis,
                at(DynamoDbAsyncClient.builder(), endpoint).build(),
                at(CloudWatchAsyncClient.builder(), endpoint).build(),
                worker,
                () -> new Processor(ledger));
        var leases = all.leaseManagementConfig();
        if (System.getenv("ECS_CONTAINER_METADATA_URI_V4") == null) {
            askNothingOfThisMachine(leases);
        }
        var coordinator = all.coordinatorConfig();
        if (given.length > 5) {
            upgrade(coordinator, given[5]);
        }
        Scheduler scheduler = new Scheduler(
                all.checkpointConfig(),
                coordinator,
                leases,
                all.lifecycleConfig(),
                all.metricsConfig().metricsFactory(new NullMetricsFactory()),
                all.processorConfig(),
                all.retrievalConfig().retrievalSpecificConfig(reading));
        if (given.length > 5) {
            hurry(scheduler, 120L);
        }
        Thread running = new Thread(scheduler, "scheduler");
        running.setDaemon(true);
        running.start();
        while (System.in.read() >= 0) {}
        scheduler.startGracefulShutdown().get(60, TimeUnit.SECONDS);
        System.exit(0);
    }

    private static final class Several implements MultiStreamTracker {
        private final List<StreamConfig> streams;

        Several(String streams, InitialPositionInStreamExtended start) {
            this.streams = Arrays.stream(streams.split(","))
                    .map(each -> new StreamConfig(StreamIdentifier.multiStreamInstance(each), start))
                    .collect(Collectors.toList());
        }

        @Override
        public List<StreamConfig> streamConfigList() {
            return streams;
        }

        @Override
        public FormerStreamsLeasesDeletionStrategy formerStreamsLeasesDeletionStrategy() {
            return new FormerStreamsLeasesDeletionStrategy.NoLeaseDeletionStrategy();
        }
    }

    /** A KCL 3 has metrics of its worker, which on this machine would be read off EC2's service. */
    private static void askNothingOfThisMachine(LeaseManagementConfig leases) throws Exception {
        try {
            Object metrics = LeaseManagementConfig.class
                    .getMethod("workerUtilizationAwareAssignmentConfig")
                    .invoke(leases);
            metrics.getClass()
                    .getMethod("disableWorkerMetrics", boolean.class)
                    .invoke(metrics, true);
        } catch (NoSuchMethodException isKcl2) {
            return;
        }
    }

    /** A KCL 3 that begins among workers of a KCL 2; by name, since that one has no such setting. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void upgrade(Object coordinator, String from) throws Exception {
        Class type = Class.forName(coordinator.getClass().getName() + "$ClientVersionConfig");
        coordinator
                .getClass()
                .getMethod("clientVersionConfig", type)
                .invoke(coordinator, Enum.valueOf(type, from));
    }

    /** It upgrades once all has been ready for ten minutes; here for so many seconds. */
    private static void hurry(Scheduler scheduler, long seconds) throws Exception {
        var machine = Scheduler.class.getDeclaredField("migrationStateMachine");
        machine.setAccessible(true);
        Object states = machine.get(scheduler);
        var ready = states.getClass().getDeclaredField("flipTo3XStabilizerTimeInSeconds");
        ready.setAccessible(true);
        ready.set(states, seconds);
    }

    private static <B extends AwsClientBuilder<B, C>, C> B at(B builder, URI endpoint) {
        return builder.endpointOverride(endpoint)
                .region(Region.US_EAST_1)
                .credentialsProvider(EnvironmentVariableCredentialsProvider.create());
    }

    private static final class Processor implements ShardRecordProcessor {
        private final FileOutputStream ledger;
        private String shard;

        Processor(FileOutputStream ledger) {
            this.ledger = ledger;
        }

        @Override
        public void initialize(InitializationInput given) {
            shard = given.shardId();
        }

        @Override
        public void processRecords(ProcessRecordsInput given) {
            if (given.records().isEmpty()) {
                return;
            }
            String rows = given.records().stream()
                    .map(each -> "[\"" + each.sequenceNumber() + "\"," + each.subSequenceNumber() + ",\"\"]")
                    .collect(Collectors.joining(","));
            String line = "{\"at_ms\":" + System.currentTimeMillis() + ",\"pid\":"
                    + ProcessHandle.current().pid() + ",\"shard\":\"" + shard + "\",\"rows\":["
                    + rows + "]}\n";
            try {
                ledger.write(line.getBytes(StandardCharsets.UTF_8));
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
            checkpoint(given.checkpointer());
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
                // The lease is another's: that one delivers it again.
            } catch (software.amazon.kinesis.exceptions.InvalidStateException
                    | software.amazon.kinesis.exceptions.ThrottlingException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
