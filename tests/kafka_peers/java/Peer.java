// Driver of Kafka's Java client; see drivers.py for the commands.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Peer {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "produce" -> produce(args[1], args[2], args[3]);
            case "consume" -> consume(args[1], args[2], args[3], args[4], Integer.parseInt(args[5]));
            case "admin" -> admin(args[1], args[2]);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static Properties properties(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    static synchronized void print(ObjectNode line) {
        System.out.println(line);
    }

    static void produce(String bootstrap, String topic, String codec) throws Exception {
        Properties properties = properties(bootstrap);
        properties.put("compression.type", codec);
        properties.put("linger.ms", "5");
        var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        int next = 0;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode sent = JSON.readTree(line);
            var record = new ProducerRecord<>(topic, sent.get("partition").asInt(),
                sent.get("key").textValue(), sent.get("value").textValue());
            for (JsonNode header : sent.get("headers")) {
                record.headers().add(header.get(0).textValue(),
                    header.get(1).textValue().getBytes(StandardCharsets.UTF_8));
            }
            int number = next++;
            producer.send(record, (stored, error) -> {
                if (error != null) {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
                print(JSON.createObjectNode().put("number", number)
                    .put("partition", stored.partition()).put("offset", stored.offset()));
            });
        }
        producer.close();
    }

    static void consume(String bootstrap, String topic, String group, String protocol, int count) {
        Properties properties = properties(bootstrap);
        properties.put("group.id", group);
        properties.put("group.protocol", protocol);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        try (var consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
            for (int found = 0; found < count; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    if (found++ == count) {
                        break;
                    }
                    ends.put(new TopicPartition(topic, record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                    ObjectNode line = JSON.createObjectNode().put("partition", record.partition())
                        .put("offset", record.offset()).put("key", record.key())
                        .put("value", record.value());
                    ArrayNode headers = line.putArray("headers");
                    for (Header header : record.headers()) {
                        headers.addArray().add(header.key())
                            .add(new String(header.value(), StandardCharsets.UTF_8));
                    }
                    print(line);
                }
            }
            consumer.commitSync(ends);
        }
    }

    static void admin(String bootstrap, String topic) throws Exception {
        try (Admin admin = Admin.create(properties(bootstrap))) {
            var wanted = List.of(new NewTopic(topic, Optional.of(3), Optional.of((short) 3))
                .configs(Map.of("retention.ms", "86400000")));
            admin.createTopics(wanted, new CreateTopicsOptions().validateOnly(true)).all().get();
            admin.createTopics(wanted).all().get();
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
            var shown = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            var settings = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            var partition = new TopicPartition(topic, 0);
            ObjectNode line = JSON.createObjectNode().put("partitions", shown.partitions().size())
                .put("replicas", shown.partitions().get(0).replicas().size())
                .put("retention", settings.get("retention.ms").value())
                .put("policy", settings.get("cleanup.policy").value())
                .put("listed", admin.listTopics().names().get().contains(topic))
                .put("end", admin.listOffsets(Map.of(partition, OffsetSpec.latest()))
                    .partitionResult(partition).get().offset());
            admin.deleteTopics(List.of(topic)).all().get();
            print(line);
        }
    }
}
