package example.tidegate;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;

/** The real tidegate, and servers that misbehave. All end with the tests. */
final class Servers {
    static final String TOKEN = "a-token-of-the-tests-0001";

    private Servers() {}

    static Path folder() throws IOException {
        return Files.createTempDirectory("tidegate-java-");
    }

    /** A server on free ports, as host and port; {@code extra} is YAML of its configuration. */
    static String tidegate(String extra) throws IOException {
        String named = System.getenv("TIDEGATE_BINARY");
        Path binary = Path.of(named == null ? "../../target/debug/tidegate" : named);
        if (!Files.exists(binary)) {
            throw new IOException(binary + " is missing: run `cargo build -p tidegate-cli`, or set TIDEGATE_BINARY");
        }
        Path folder = folder();
        Path config = folder.resolve("tidegate.yaml");
        Path rules = Path.of("../testing/rules.yaml").toAbsolutePath().normalize();
        Files.writeString(config, "listen: { http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }\n"
                + "rules: { paths: ['" + rules + "'] }\ndata: '" + folder + "/data'\n" + extra);
        ProcessBuilder builder = new ProcessBuilder(binary.toString(), "serve", "--config", config.toString());
        builder.redirectError(ProcessBuilder.Redirect.DISCARD);
        // A variable of that name that it does not know is an error.
        builder.environment().keySet().removeIf(name -> name.startsWith("TIDEGATE_"));
        Process process = builder.start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.startsWith("listening http ")) {
                // It may print more, and must not wait for a reader.
                background(() -> lines.transferTo(java.io.Writer.nullWriter()));
                return line.split(" ")[2];
            }
        }
        throw new IOException("tidegate ended before it listened");
    }

    /** A self-signed certificate for 127.0.0.1: name.pem and name.key in a folder. */
    static void certificate(Path folder, String name) throws Exception {
        List<String> words = new ArrayList<>(List.of(("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
                + " -subj /CN=test -addext subjectAltName=IP:127.0.0.1").split(" ")));
        words.addAll(List.of("-keyout", folder.resolve(name + ".key").toString(), "-out", folder.resolve(name + ".pem").toString()));
        ProcessBuilder builder = new ProcessBuilder(words).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD);
        Tests.equal(builder.start().waitFor(), 0);
    }

    /** Takes connections and never answers, or says what it is given and no more. */
    static final class Silent {
        final String url;
        final List<String> received = Collections.synchronizedList(new ArrayList<>());

        Silent(String says) throws IOException {
            ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
            url = "http://127.0.0.1:" + listener.getLocalPort();
            background(() -> {
                while (true) {
                    Socket socket = listener.accept();
                    background(() -> answer(socket, says));
                }
            });
        }

        private void answer(Socket socket, String says) throws IOException {
            byte[] buffer = new byte[65536];
            StringBuilder request = new StringBuilder();
            // Headers and body may come apart.
            while (!request.toString().contains("}")) {
                int count = socket.getInputStream().read(buffer);
                if (count < 0) {
                    return;
                }
                request.append(new String(buffer, 0, count, StandardCharsets.UTF_8));
            }
            received.add(request.toString());
            socket.getOutputStream().write(says.getBytes(StandardCharsets.UTF_8));
        }
    }

    /** The address of a server that is down. */
    static String nobody() throws IOException {
        try (ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            return "http://127.0.0.1:" + listener.getLocalPort();
        }
    }

    static String fresh() {
        return UUID.randomUUID().toString();
    }

    private static void background(Tests.Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (Exception error) {
                // The other side has gone.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
