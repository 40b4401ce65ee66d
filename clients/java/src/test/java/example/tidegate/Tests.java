package example.tidegate;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

/** Runs tests without a library: those that the registries of a fresh machine have no need to give. */
public final class Tests {
    /** What a test does. */
    interface Body {
        void run() throws Exception;
    }

    private static final List<String> FAILED = new ArrayList<>();
    private static int passed;

    static void test(String name, Body body) {
        try {
            body.run();
            passed++;
            System.out.println("ok " + name);
        } catch (Throwable error) {
            FAILED.add(name);
            System.out.println("FAILED " + name);
            error.printStackTrace(System.out);
        }
    }

    static void equal(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError("got " + got + ", wanted " + wanted);
        }
    }

    /** The exception of this class that a body throws. */
    static <E extends Throwable> E thrown(Class<E> kind, Body body) {
        try {
            body.run();
        } catch (Throwable error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw new AssertionError("threw " + error, error);
        }
        throw new AssertionError("threw nothing");
    }

    public static void main(String[] args) throws Exception {
        // What Tomcat says of failures that tests want is not looked at.
        java.util.logging.LogManager.getLogManager().reset();
        PacingTests.run();
        ClientTests.run();
        FilterTests.run();
        System.out.println(passed + " passed, " + FAILED.size() + " failed");
        System.exit(FAILED.isEmpty() ? 0 : 1);
    }

    private Tests() {}
}
