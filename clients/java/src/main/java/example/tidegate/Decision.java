package example.tidegate;

import java.net.http.HttpHeaders;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Whether a request may pass, and how near its limit is.
 *
 * @param allowed whether it may pass
 * @param status 200, 429, or 503 where a rule must not decide without its store
 * @param source who decided, such as {@code store}; {@code client_open} or {@code client_closed} where the failure policy did
 * @param rule the rule whose numbers these are; null where none matched
 * @param limit that limit's number; -1 where none matched
 * @param remaining hits left after this request; -1 where none matched
 * @param resetAfter until the full quota is back
 * @param retryAfter until the same request would pass; empty if it passed, or never will
 * @param delay how long to wait before going on, where a leaky bucket says so
 * @param lease to be released, where a concurrency limit was taken; or null
 * @param spent when hits were spent, for {@link Client#refund}; or null
 * @param headers rate limit headers for the caller; a batch has none
 * @param message why it was refused; or null
 * @param error why the failure policy decided; or null
 */
public record Decision(
        boolean allowed,
        int status,
        String source,
        String rule,
        long limit,
        long remaining,
        Optional<Duration> resetAfter,
        Optional<Duration> retryAfter,
        Duration delay,
        String lease,
        String spent,
        Map<String, String> headers,
        String message,
        TidegateException error) {

    private static final List<String> PASSED_ON = List.of("x-ratelimit-limit", "x-ratelimit-remaining",
            "x-ratelimit-reset", "ratelimit-policy", "ratelimit", "retry-after");

    static Decision read(Map<?, ?> body, int status, HttpHeaders headers) {
        Map<String, String> passedOn = new LinkedHashMap<>();
        if (headers != null) {
            PASSED_ON.forEach(name -> headers.firstValue(name).ifPresent(value -> passedOn.put(name, value)));
        }
        return new Decision(Boolean.TRUE.equals(body.get("allowed")), status, text(body, "source"), text(body, "rule"),
                number(body, "limit"), number(body, "remaining"), millis(body, "reset_after_ms"),
                millis(body, "retry_after_ms"), millis(body, "delay_ms").orElse(Duration.ZERO), text(body, "lease"),
                text(body, "spent"), Map.copyOf(passedOn), text(body, "message"), null);
    }

    /** What the failure policy says. */
    static Decision ofFailure(boolean allowed, TidegateException error) {
        return new Decision(allowed, allowed ? 200 : 503, allowed ? "client_open" : "client_closed", null, -1, -1,
                Optional.empty(), allowed ? Optional.empty() : Optional.of(Duration.ofSeconds(1)), Duration.ZERO, null,
                null, allowed ? Map.of() : Map.of("retry-after", "1"),
                allowed ? null : "the rate limiter cannot be asked now", error);
    }

    private static String text(Map<?, ?> body, String name) {
        return body.get(name) instanceof String text ? text : null;
    }

    private static long number(Map<?, ?> body, String name) {
        return body.get(name) instanceof Number number ? number.longValue() : -1;
    }

    private static Optional<Duration> millis(Map<?, ?> body, String name) {
        long ms = number(body, name);
        return ms < 0 ? Optional.empty() : Optional.of(Duration.ofMillis(ms));
    }
}
