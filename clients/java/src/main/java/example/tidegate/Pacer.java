package example.tidegate;

import java.net.http.HttpHeaders;
import java.time.Duration;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.HashMap;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.DoubleSupplier;
import java.util.function.LongSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Spreads requests to a limited service so that few are refused. Threads may share one; one service and caller each.
 *
 * <p>While more than half of a quota is left nothing waits. Below that, requests are as far apart as the quota allows in the long run. A
 * refusal is followed by a pause as Retry-After says, and a little longer at random: clients refused together do not come back together.
 */
public final class Pacer {
    private static final Pattern ITEM = Pattern.compile(
            "\"((?:[^\"\\\\]|\\\\.)*)\"((?:\\s*;\\s*[a-z*][a-z0-9_.*-]*(?:=(?:\"(?:[^\"\\\\]|\\\\.)*\"|:[^:]*:|[^;,\"]*))?)*)");
    private final LongSupplier nanos;
    private final DoubleSupplier random;
    /** When the next request may be sent, and how far apart those after it are. */
    private long next;
    private double interval;

    /** One that has heard nothing yet. */
    public Pacer() {
        this(System::nanoTime, () -> ThreadLocalRandom.current().nextDouble());
    }

    Pacer(LongSupplier nanos, DoubleSupplier random) {
        this.nanos = nanos;
        this.random = random;
        this.next = nanos.getAsLong();
    }

    /** Takes the next place in time, and says in how long it is. */
    public synchronized Duration reserve() {
        long now = nanos.getAsLong();
        long start = Math.max(0, next - now);
        next = now + start + (long) (interval * 1e9 * (1 + 0.1 * random.getAsDouble()));
        return Duration.ofNanos(start);
    }

    /** Waits until the next request may be sent. */
    public void await() throws InterruptedException {
        TimeUnit.NANOSECONDS.sleep(reserve().toNanos());
    }

    /** Takes in an answer. */
    public synchronized void heard(int status, HttpHeaders headers) {
        OptionalDouble reported = intervalOf(headers);
        interval = reported.orElse(interval);
        OptionalDouble wait = status == 429 || status == 503 ? retryAfter(headers) : OptionalDouble.empty();
        double pause = reported.orElse(0);
        if (wait.isPresent()) {
            pause = wait.getAsDouble() + (interval == 0 ? 1 : interval) * random.getAsDouble();
        }
        long until = nanos.getAsLong() + (long) (pause * 1e9);
        if (pause > 0 && until - next > 0) {
            next = until;
        }
    }

    /** Seconds between requests that every reported limit bears. */
    private static OptionalDouble intervalOf(HttpHeaders headers) {
        Map<String, Map<String, Long>> left = parse(String.join(", ", headers.allValues("ratelimit")));
        OptionalDouble slowest = OptionalDouble.empty();
        for (Map.Entry<String, Map<String, Long>> policy : parse(String.join(", ", headers.allValues("ratelimit-policy"))).entrySet()) {
            Map<String, Long> known = left.getOrDefault(policy.getKey(), Map.of());
            long quota = policy.getValue().getOrDefault("q", 0L);
            Long span = policy.getValue().getOrDefault("w", known.get("t"));
            if (known.get("r") == null || quota == 0 || span == null) {
                continue;
            }
            double wanted = known.get("r") * 2 > quota ? 0 : (double) span / quota;
            slowest = OptionalDouble.of(Math.max(slowest.orElse(0), wanted));
        }
        return slowest;
    }

    /** The named items of a RateLimit or RateLimit-Policy header, with their integers. */
    private static Map<String, Map<String, Long>> parse(String value) {
        Map<String, Map<String, Long>> items = new HashMap<>();
        for (Matcher item = ITEM.matcher(value); item.find(); ) {
            Map<String, Long> numbers = new HashMap<>();
            for (String part : item.group(2).split(";")) {
                String[] pair = part.strip().split("=", 2);
                if (pair.length == 2 && pair[1].matches("\\d{1,15}")) {
                    numbers.put(pair[0], Long.valueOf(pair[1]));
                }
            }
            items.put(item.group(1), numbers);
        }
        return items;
    }

    private static OptionalDouble retryAfter(HttpHeaders headers) {
        String value = headers.firstValue("retry-after").orElse("");
        if (value.matches("\\d{1,9}")) {
            return OptionalDouble.of(Double.parseDouble(value));
        }
        try {
            ZonedDateTime date = ZonedDateTime.parse(value, DateTimeFormatter.RFC_1123_DATE_TIME);
            return OptionalDouble.of(Math.max(0, Duration.between(ZonedDateTime.now(), date).toMillis() / 1e3));
        } catch (DateTimeParseException error) {
            return OptionalDouble.empty();
        }
    }
}
