package tidegate

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	testToken = "a-token-of-the-tests-0001"
	// Long enough for a busy machine.
	patient = 20 * time.Second
)

func binary(t testing.TB) string {
	path := os.Getenv("TIDEGATE_BINARY")
	if path == "" {
		path = "../../target/debug/tidegate"
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `cargo build -p tidegate-cli`, or set TIDEGATE_BINARY", err)
	}
	return path
}

// serve starts the real server on free ports; extra is YAML of its configuration. It returns host and port.
func serve(t testing.TB, extra string) string {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs("../testing/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "tidegate.yaml")
	text := fmt.Sprintf("listen: { http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }\nrules: { paths: ['%s'] }\ndata: '%s/data'\n%s", rules, dir, extra)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary(t), "serve", "--config", config)
	// A variable of that name that it does not know is an error.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "TIDEGATE_") {
			command.Env = append(command.Env, variable)
		}
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if address, found := strings.CutPrefix(lines.Text(), "listening http "); found {
			// It may print more, and must not wait for a reader.
			go io.Copy(io.Discard, stdout)
			return address
		}
	}
	t.Fatal("tidegate ended before it listened")
	return ""
}

// silent takes connections and never answers, or says what it is given and no more.
type silent struct {
	url      string
	mutex    sync.Mutex
	received []string
}

func listen(t testing.TB, says string) *silent {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	peer := &silent{url: "http://" + listener.Addr().String()}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				buffer := make([]byte, 65536)
				count, _ := connection.Read(buffer)
				peer.mutex.Lock()
				peer.received = append(peer.received, string(buffer[:count]))
				peer.mutex.Unlock()
				_, _ = io.WriteString(connection, says)
				_, _ = io.Copy(io.Discard, connection)
				connection.Close()
			}()
		}
	}()
	return peer
}

// nobody is the address of a server that is down.
func nobody(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "http://" + listener.Addr().String()
}
