import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Apache Kafka's client in the interop matrix. ../README.md has the contract. */
public final class Interop {
    private static final String NAME = "java";
    private static final long LIMIT_NANOS = Duration.ofMinutes(2).toNanos();

    public static void main(String[] args) throws Exception {
        if (args.length == 6 && args[0].equals("produce")) {
            produce(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]), args[5]);
        } else if (args.length == 5 && args[0].equals("consume")) {
            consume(args[1], args[2], args[3], Integer.parseInt(args[4]));
        } else {
            System.err.println("want: produce BROKER TOPIC FROM N CODEC, or consume BROKER TOPIC GROUP N");
            System.exit(2);
        }
    }

    private static ProducerRecord<String, String> record(String topic, int i) {
        String key = "k" + i % 97;
        String value = i + "-" + "x".repeat(i % 200);
        if (i % 100 == 50) {
            key = "t" + i;
            value = null;
        } else if (i % 10 == 9) {
            key = null;
        }
        ProducerRecord<String, String> r = new ProducerRecord<>(topic, key, value);
        r.headers().add("client", NAME.getBytes(StandardCharsets.UTF_8));
        r.headers().add("n", Integer.toString(i).getBytes(StandardCharsets.UTF_8));
        return r;
    }

    private static void produce(String broker, String topic, int from, int n, String codec) throws Exception {
        Map<String, Object> config = new java.util.HashMap<>(Map.of("bootstrap.servers", broker));
        if (!codec.equals("default")) {
            config.put("compression.type", codec);
        }
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = from; i < from + n; i++) {
                sent.add(producer.send(record(topic, i)));
            }
            for (Future<RecordMetadata> s : sent) {
                s.get();
            }
        }
    }

    private static void consume(String broker, String topic, String group, int n) {
        Map<String, Object> config = Map.of(
            "bootstrap.servers", broker, "group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false);
        StringBuilder out = new StringBuilder();
        int count = 0;
        long start = System.nanoTime();
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (count < n) {
                if (System.nanoTime() - start > LIMIT_NANOS) {
                    throw new IllegalStateException(count + " of " + n + " records within two minutes");
                }
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(500))) {
                    line(out, r);
                    count++;
                }
            }
            consumer.commitSync();
        }
        System.out.print(out);
        System.out.flush();
    }

    /** The texts of the contract need no escapes. */
    private static void line(StringBuilder out, ConsumerRecord<String, String> r) {
        out.append("{\"partition\":").append(r.partition()).append(",\"offset\":").append(r.offset());
        out.append(",\"key\":").append(quoted(r.key())).append(",\"payload\":").append(quoted(r.value()));
        out.append(",\"headers\":[");
        String comma = "";
        for (Header h : r.headers()) {
            out.append(comma).append(quoted(h.key())).append(',').append(quoted(new String(h.value(), StandardCharsets.UTF_8)));
            comma = ",";
        }
        out.append("]}\n");
    }

    private static String quoted(String s) {
        return s == null ? "null" : '"' + s + '"';
    }
}
