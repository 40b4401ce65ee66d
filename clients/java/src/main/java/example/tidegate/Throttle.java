package example.tidegate;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.DoubleSupplier;
import java.util.function.LongSupplier;

/**
 * Drops requests here that the service would most likely refuse ("Handling Overload" in Google's SRE book).
 *
 * <p>A request is dropped with probability {@code max(0, (requests - k * accepts) / (requests + 1))}, both counted over the last
 * {@code window}. With {@code k} 2, a service that accepts at least half is never throttled.
 */
public final class Throttle {
    private static final int SLOTS = 12;
    private final double k;
    private final long slotNanos;
    private final LongSupplier nanos;
    private final DoubleSupplier random;
    /** Requests and accepts of each slot of time. */
    private final double[][] counts = new double[SLOTS][2];
    private long newest;

    /** With 2 and two minutes. */
    public Throttle() {
        this(2, Duration.ofMinutes(2));
    }

    /** One that has heard nothing yet. */
    public Throttle(double k, Duration window) {
        this(k, window, System::nanoTime, () -> ThreadLocalRandom.current().nextDouble());
    }

    Throttle(double k, Duration window, LongSupplier nanos, DoubleSupplier random) {
        this.k = k;
        this.slotNanos = window.toNanos() / SLOTS;
        this.nanos = nanos;
        this.random = random;
        this.newest = Math.floorDiv(nanos.getAsLong(), slotNanos);
    }

    /** Whether to send a request now. It counts as one either way. */
    public synchronized boolean allow() {
        double[] slot = current();
        double requests = 0;
        double accepts = 0;
        for (double[] count : counts) {
            requests += count[0];
            accepts += count[1];
        }
        slot[0]++;
        return random.getAsDouble() >= Math.max(0, (requests - k * accepts) / (requests + 1));
    }

    /** Takes in whether the service took a request that was sent. */
    public synchronized void heard(boolean accepted) {
        if (accepted) {
            current()[1]++;
        }
    }

    private double[] current() {
        long now = Math.floorDiv(nanos.getAsLong(), slotNanos);
        for (long late = Math.min(now - newest, SLOTS); late > 0; late--) {
            counts[(int) Math.floorMod(now - late + 1, (long) SLOTS)] = new double[2];
        }
        newest = Math.max(newest, now);
        return counts[(int) Math.floorMod(newest, (long) SLOTS)];
    }
}
