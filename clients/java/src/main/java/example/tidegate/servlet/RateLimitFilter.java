package example.tidegate.servlet;

import example.tidegate.Client;
import example.tidegate.Decision;
import example.tidegate.TidegateException.InvalidRequest;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Inet6Address;
import java.net.UnknownHostException;
import java.util.Map;
import java.util.function.Function;

/**
 * Asks before each request, sends the headers on, and holds leases until the response is sent, also an asynchronous one.
 *
 * <p>Put it after whatever authenticates: an identity that a caller only claims is no key.
 */
public final class RateLimitFilter implements Filter {
    private final Client client;
    private final Function<HttpServletRequest, Map<String, String>> attributes;

    /** Sends method, path and address. */
    public RateLimitFilter(Client client) {
        this(client, RateLimitFilter::requestAttributes);
    }

    /** Describes a request to the rules by {@code attributes}; where that returns null, it passes unasked. */
    public RateLimitFilter(Client client, Function<HttpServletRequest, Map<String, String>> attributes) {
        this.client = client;
        this.attributes = attributes;
    }

    /** Method, path and the address that the container knows: behind a proxy, configure its remote-address filter. */
    public static Map<String, String> requestAttributes(HttpServletRequest request) {
        return Map.of("method", request.getMethod(), "path", request.getRequestURI(), "ip", clientIp(request.getRemoteAddr()));
    }

    /** An address as tidegate's own front ends count it: of IPv6 the /64; IPv4 never as IPv6. */
    public static String clientIp(String address) {
        try {
            InetAddress parsed = InetAddress.getByName(address.split("%")[0]);
            if (!(parsed instanceof Inet6Address)) {
                // The JDK reads an IPv4 address in IPv6 form as IPv4.
                return parsed.getHostAddress();
            }
            byte[] bytes = parsed.getAddress();
            int[] groups = new int[4];
            for (int i = 0; i < 4; i++) {
                groups[i] = (bytes[2 * i] & 255) << 8 | bytes[2 * i + 1] & 255;
            }
            // The last four are zero: the longest run, so the one that is left out, begins with those before them.
            int end = 4;
            while (end > 0 && groups[end - 1] == 0) {
                end--;
            }
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < end; i++) {
                text.append(Integer.toHexString(groups[i])).append(i + 1 < end ? ":" : "");
            }
            return text + "::/64";
        } catch (UnknownHostException error) {
            return address;
        }
    }

    @Override
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain) throws IOException, ServletException {
        if (!(request instanceof HttpServletRequest asked) || !(response instanceof HttpServletResponse answer)) {
            chain.doFilter(request, response);
            return;
        }
        Map<String, String> described = attributes.apply(asked);
        if (described == null) {
            chain.doFilter(request, response);
            return;
        }
        Decision decision;
        try {
            decision = client.check(described);
        } catch (InvalidRequest error) {
            if (error.field == null || !error.field.startsWith("attributes")) {
                throw error;
            }
            // Such as a path of 5 KB: the caller's own words cannot be checked.
            write(answer, 400, "The request is not valid", "malformed_request");
            return;
        }
        decision.headers().forEach(answer::setHeader);
        if (!decision.allowed()) {
            boolean closed = decision.status() == 503;
            decision.retryAfter().filter(wait -> answer.getHeader("retry-after") == null)
                    .ifPresent(wait -> answer.setHeader("retry-after", Long.toString((wait.toMillis() + 999) / 1000)));
            write(answer, decision.status(), closed ? "The limit cannot be checked now" : "The quota is exceeded",
                    closed ? "store_unavailable" : "rate_limit_exceeded");
            return;
        }
        pass(decision, request, response, chain);
    }

    private void pass(Decision decision, ServletRequest request, ServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        boolean later = false;
        try {
            Thread.sleep(decision.delay().toMillis());
            chain.doFilter(request, response);
            if (decision.lease() != null && request.isAsyncStarted()) {
                request.getAsyncContext().addListener(new Releasing(decision.lease()));
                later = true;
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new ServletException(error);
        } finally {
            if (!later) {
                client.releaseQuietly(decision.lease());
            }
        }
    }

    private static void write(HttpServletResponse answer, int status, String title, String error) throws IOException {
        answer.setStatus(status);
        answer.setContentType("application/problem+json");
        answer.getWriter().write("{\"title\":\"" + title + "\",\"status\":" + status + ",\"error\":\"" + error + "\"}");
    }

    private final class Releasing implements AsyncListener {
        private final String lease;

        private Releasing(String lease) {
            this.lease = lease;
        }

        @Override
        public void onComplete(AsyncEvent event) {
            client.releaseQuietly(lease);
        }

        @Override
        public void onTimeout(AsyncEvent event) {}

        @Override
        public void onError(AsyncEvent event) {}

        @Override
        public void onStartAsync(AsyncEvent event) {
            event.getAsyncContext().addListener(this);
        }
    }
}
