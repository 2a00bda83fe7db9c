package software.amazon.kinesis.leases;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.slf4j.LoggerFactory;
import software.amazon.kinesis.retrieval.AggregatorUtil;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.kpl.ExtendedSequenceNumber;

/**
 * Answers questions by asking the KCL: a line of JSON in, {"area": name, "cases": [...]}, a line
 * out, an array with the answer to each case. It decides nothing itself. It is in the KCL's package,
 * for some of what it asks is not public.
 */
public final class Driver {
    private static final JsonNodeFactory NEW = JsonNodeFactory.instance;
    private static final AggregatorUtil AGGREGATES = new AggregatorUtil();

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
            default:
                throw new IllegalArgumentException(area);
        }
    }

    /** What is thrown is an answer as well: the name of its class. */
    private static JsonNode answered(Question question, JsonNode theCase) {
        try {
            return question.answer(theCase);
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
}
