import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Counts the words of a topic with Flink, exactly once, until its input ends. */
public final class FlinkCount {
    public static void main(String[] arguments) throws Exception {
        File directory = new File(arguments[1], "checkpoints");
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "500 ms");
        settings.setString("execution.checkpointing.dir", directory.toURI().toString());
        settings.setString("execution.checkpointing.num-retained", "3");
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        String last = lastCheckpoint(directory);
        if (last != null) {
            settings.setString("execution.state-recovery.path", last);
        }
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<String> words = KafkaSource.<String>builder()
                .setBootstrapServers(arguments[0])
                .setTopics("words")
                .setGroupId("flink-count")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<Tuple2<String, Long>> counts = KafkaSink.<Tuple2<String, Long>>builder()
                .setBootstrapServers(arguments[0])
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("flink-count")
                .setProperty("transaction.timeout.ms", "600000")
                .setRecordSerializer(new Output())
                .build();
        job.fromSource(words, WatermarkStrategy.noWatermarks(), "words").uid("words")
                .keyBy(word -> word, Types.STRING)
                .map(new Count()).uid("count")
                .returns(Types.TUPLE(Types.STRING, Types.LONG))
                .sinkTo(counts).uid("counts");
        job.executeAsync("count");
        while (System.in.read() >= 0) {
            // until it is closed
        }
        System.exit(0);
    }

    /** Counts the words of one key. */
    static final class Count extends RichMapFunction<String, Tuple2<String, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public Tuple2<String, Long> map(String word) throws Exception {
            Long before = count.value();
            count.update(before == null ? 1 : before + 1);
            return Tuple2.of(word, count.value());
        }
    }

    /** Writes a count with its word as the key. */
    static final class Output implements KafkaRecordSerializationSchema<Tuple2<String, Long>> {
        @Override
        public ProducerRecord<byte[], byte[]> serialize(
                Tuple2<String, Long> count, KafkaSinkContext context, Long timestamp) {
            byte[] key = count.f0.getBytes(StandardCharsets.UTF_8);
            return new ProducerRecord<>("counts", key, count.f1.toString().getBytes(StandardCharsets.UTF_8));
        }
    }

    /** Returns the last complete checkpoint of any run, or null. */
    private static String lastCheckpoint(File directory) {
        File[] jobs = directory.listFiles(File::isDirectory);
        return Arrays.stream(jobs == null ? new File[0] : jobs)
                .flatMap(run -> Arrays.stream(run.listFiles()))
                .filter(each -> new File(each, "_metadata").exists())
                .max(Comparator.comparingLong(each -> new File(each, "_metadata").lastModified()))
                .map(each -> each.toURI().toString())
                .orElse(null);
    }
}
