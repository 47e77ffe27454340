import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Publishes crawl events as a Java crawler does: of each codec by an idempotent and by a transactional producer. */
public class Crawler {
    public static void main(String[] args) {
        String bootstrap = args[0], topic = args[1];
        int each = Integer.parseInt(args[2]);
        for (int i = 3; i < args.length; i++) {
            try (var producer = producer(bootstrap, args[i], Map.of("enable.idempotence", "true"))) {
                send(producer, topic, args[i], "idempotent", each);
            }
            Map<String, Object> id = Map.of("transactional.id", topic + "-java-" + args[i]);
            try (var producer = producer(bootstrap, args[i], id)) {
                producer.initTransactions();
                producer.beginTransaction();
                send(producer, topic, args[i], "aborted", each);
                producer.flush();
                producer.abortTransaction();
                producer.beginTransaction();
                send(producer, topic, args[i], "committed", each);
                producer.commitTransaction();
            }
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String codec, Map<String, Object> more) {
        var options = new java.util.HashMap<String, Object>(more);
        options.put("bootstrap.servers", bootstrap);
        options.put("compression.type", codec);
        options.put("linger.ms", "20");
        var bytes = new ByteArraySerializer();
        return new KafkaProducer<>(options, bytes, bytes);
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, String codec, String kind, int each) {
        for (int number = 0; number < each; number++) {
            String host = "java-" + codec + "-" + number % 7 + ".example";
            String event = "{\"url\": \"http://" + host + "/" + kind + "/" + number + "\", \"links\": null}";
            byte[] key = host.getBytes(StandardCharsets.UTF_8), value = event.getBytes(StandardCharsets.UTF_8);
            producer.send(new ProducerRecord<>(topic, key, value));
        }
    }
}
