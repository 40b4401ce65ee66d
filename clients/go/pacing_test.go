package tidegate

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// paced is a pacer on a clock that the test moves.
func paced(random float64) (*Pacer, *time.Time) {
	now := time.Unix(1000, 0)
	return &Pacer{now: func() time.Time { return now }, random: func() float64 { return random }}, &now
}

func limits(remaining int, policy string) http.Header {
	header := http.Header{}
	header.Set("RateLimit-Policy", policy)
	header.Set("RateLimit", fmt.Sprintf(`"a,;q=1\"";r=%d;t=9, "b";r=%d;t=9`, remaining, remaining))
	return header
}

const policyA = `"a,;q=1\"";q=10;pk=:YSw7:;w=60`

func TestPacer(t *testing.T) {
	t.Run("nothing waits while much is left", func(t *testing.T) {
		pacer, _ := paced(0)
		pacer.Heard(200, limits(6, policyA))
		equal(t, pacer.Reserve()+pacer.Reserve(), 0)
	})
	t.Run("requests are spread once half is spent", func(t *testing.T) {
		pacer, now := paced(0)
		pacer.Heard(200, limits(5, policyA))
		equal(t, words(pacer.Reserve(), pacer.Reserve()), "6s 12s")
		*now = now.Add(12 * time.Second)
		equal(t, pacer.Reserve(), 6*time.Second)
	})
	t.Run("refusal waits as long as it says and jitter only adds", func(t *testing.T) {
		pacer, _ := paced(0.5)
		pacer.Heard(429, http.Header{"Retry-After": {"30"}})
		equal(t, pacer.Reserve(), 30500*time.Millisecond)
	})
	t.Run("slowest of several limits counts", func(t *testing.T) {
		pacer, _ := paced(0)
		pacer.Heard(200, limits(1, policyA+`, "b";q=2;w=60`))
		equal(t, pacer.Reserve(), 30*time.Second)
	})
}

func TestThrottle(t *testing.T) {
	now, drawn := time.Unix(1000, 0), 1.0
	throttle := NewThrottle(2, time.Minute)
	throttle.now = func() time.Time { return now }
	throttle.random = func() float64 { return drawn }
	for number := range 99 {
		throttle.Allow()
		throttle.Heard(number < 9)
	}
	// (99 - 2 * 9) / (99 + 1)
	drawn = 0.80
	equal(t, throttle.Allow(), false)
	drawn = 0.82
	equal(t, throttle.Allow(), true)
	now = now.Add(66 * time.Second)
	drawn = 0
	equal(t, throttle.Allow(), true)
}
