package example.tidegate;

import static example.tidegate.Tests.equal;
import static example.tidegate.Tests.test;

import java.net.http.HttpHeaders;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** Pacing, on a clock that the tests move. */
final class PacingTests {
    private static final String POLICY = "\"a,;q=1\\\"\";q=10;pk=:YSw7:;w=60";

    private PacingTests() {}

    private static HttpHeaders limits(int remaining, String policy) {
        String left = String.format("\"a,;q=1\\\"\";r=%d;t=9, \"b\";r=%d;t=9", remaining, remaining);
        return HttpHeaders.of(Map.of("RateLimit-Policy", List.of(policy), "RateLimit", List.of(left)), (name, value) -> true);
    }

    static void run() {
        long[] now = {1_000_000_000_000L};
        test("nothing waits while much is left", () -> {
            Pacer pacer = new Pacer(() -> now[0], () -> 0);
            pacer.heard(200, limits(6, POLICY));
            equal(List.of(pacer.reserve(), pacer.reserve()), List.of(Duration.ZERO, Duration.ZERO));
        });
        test("requests are spread once half is spent", () -> {
            Pacer pacer = new Pacer(() -> now[0], () -> 0);
            pacer.heard(200, limits(5, POLICY));
            equal(List.of(pacer.reserve(), pacer.reserve()), List.of(Duration.ofSeconds(6), Duration.ofSeconds(12)));
        });
        test("refusal waits as long as it says, and jitter only adds", () -> {
            Pacer pacer = new Pacer(() -> now[0], () -> 0.5);
            pacer.heard(429, HttpHeaders.of(Map.of("retry-after", List.of("30")), (name, value) -> true));
            equal(pacer.reserve(), Duration.ofMillis(30_500));
        });
        test("slowest of several limits counts", () -> {
            Pacer pacer = new Pacer(() -> now[0], () -> 0);
            pacer.heard(200, limits(1, POLICY + ", \"b\";q=2;w=60"));
            equal(pacer.reserve(), Duration.ofSeconds(30));
        });
        test("requests are dropped by the formula, and old times are forgotten", () -> {
            double[] drawn = {1};
            Throttle throttle = new Throttle(2, Duration.ofMinutes(1), () -> now[0], () -> drawn[0]);
            for (int i = 0; i < 99; i++) {
                throttle.allow();
                throttle.heard(i < 9);
            }
            // (99 - 2 * 9) / (99 + 1)
            drawn[0] = 0.80;
            equal(throttle.allow(), false);
            drawn[0] = 0.82;
            equal(throttle.allow(), true);
            now[0] += 66_000_000_000L;
            drawn[0] = 0;
            equal(throttle.allow(), true);
        });
    }
}
