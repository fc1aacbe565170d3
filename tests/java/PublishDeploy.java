import java.io.ByteArrayOutputStream;
import java.io.File;
import java.util.List;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Asks for a model from Java, with nothing but Pulsar's own client and the committed schema:
 *
 * <pre>java -cp "lib/*" PublishDeploy.java pulsar://host:6650 events/schemas/model-events.avsc iris file:///models/iris</pre>
 *
 * The client registers the schema with the topic; the broker stamps the message with its version, and from that the
 * scheduler knows how to read it. The last line of output is the request's id.
 */
public class PublishDeploy {
    private static final String TOPIC = "persistent://magnetar/events/model-events";

    public static void main(String[] arguments) throws Exception {
        Schema schema = new Schema.Parser().parse(new File(arguments[1]));
        String name = arguments[2];
        String id = UUID.randomUUID().toString();

        // The builders fill in the schema's defaults: only what matters is set.
        Schema deploy = member(schema.getField("event").schema(), "DeployModel");
        GenericRecord model = new GenericRecordBuilder(deploy.getField("model").schema())
                .set("name", name)
                .set("storageUri", arguments[3])
                .set("requirements", List.of("sklearn"))
                .set("memory", 100L << 20)
                .set("replicas", 2L)
                .build();
        GenericRecord event = new GenericRecordBuilder(schema)
                .set("id", id)
                .set("source", "java")
                .set("time", System.currentTimeMillis())
                .set("reason", "published by Pulsar's own client")
                .set("event", new GenericRecordBuilder(deploy).set("model", model).build())
                .build();

        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<GenericRecord>(schema).write(event, encoder);
        encoder.flush();

        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Producer<byte[]> producer = client
                        .newProducer(org.apache.pulsar.client.api.Schema.NATIVE_AVRO(schema))
                        .topic(TOPIC)
                        .create()) {
            producer.newMessage().key("default/" + name).value(bytes.toByteArray()).send();
        }
        System.out.println(id);
    }

    private static Schema member(Schema union, String name) {
        return union.getTypes().stream().filter(type -> type.getName().equals(name)).findFirst().orElseThrow();
    }
}
