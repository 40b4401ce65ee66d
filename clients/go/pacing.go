package tidegate

import (
	"context"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Pacer spreads requests to a limited service so that few are refused. Goroutines may share one; one service and caller each.
//
// While more than half of a quota is left nothing waits. Below that, requests are as far apart as the quota allows in the long run. A
// refusal is followed by a pause as Retry-After says, and a little longer at random: clients refused together do not come back
// together.
type Pacer struct {
	now    func() time.Time
	random func() float64
	mutex  sync.Mutex
	// When the next request may be sent, and how far apart those after it are.
	next     time.Time
	interval time.Duration
}

// NewPacer makes one that has heard nothing yet.
func NewPacer() *Pacer { return &Pacer{now: time.Now, random: rand.Float64} }

// Reserve takes the next place in time, and says in how long it is.
func (p *Pacer) Reserve() time.Duration {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	now := p.now()
	start := now
	if p.next.After(start) {
		start = p.next
	}
	p.next = start.Add(time.Duration(float64(p.interval) * (1 + 0.1*p.random())))
	return start.Sub(now)
}

// Wait waits until the next request may be sent, or ctx ends.
func (p *Pacer) Wait(ctx context.Context) error { return sleep(ctx, p.Reserve()) }

// Heard takes in an answer.
func (p *Pacer) Heard(status int, header http.Header) {
	interval, reported := intervalOf(header)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if reported {
		p.interval = interval
	}
	now, pause := p.now(), time.Duration(0)
	refused := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	if wait, ok := retryAfter(header.Get("Retry-After"), now); refused && ok {
		jitter := p.interval
		if jitter == 0 {
			jitter = time.Second
		}
		pause = wait + time.Duration(float64(jitter)*p.random())
	} else if reported {
		pause = interval
	}
	if next := now.Add(pause); pause > 0 && next.After(p.next) {
		p.next = next
	}
}

var (
	listItem   = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[^"\\]|\\.)*"|:[^:]*:|[^;,"]*))?)*)`)
	digitsOnly = regexp.MustCompile(`^\d{1,15}$`)
)

// parseList reads the named items of a RateLimit or RateLimit-Policy header, with their integers.
func parseList(value string) map[string]map[string]int64 {
	items := map[string]map[string]int64{}
	for _, found := range listItem.FindAllStringSubmatch(value, -1) {
		numbers := map[string]int64{}
		for _, part := range strings.Split(found[2], ";") {
			key, number, _ := strings.Cut(strings.TrimSpace(part), "=")
			if digitsOnly.MatchString(number) {
				numbers[key], _ = strconv.ParseInt(number, 10, 64)
			}
		}
		items[found[1]] = numbers
	}
	return items
}

// intervalOf is the time between requests that every reported limit bears, and whether any was reported.
func intervalOf(header http.Header) (time.Duration, bool) {
	left := parseList(strings.Join(header.Values("RateLimit"), ", "))
	slowest, reported := time.Duration(0), false
	for name, policy := range parseList(strings.Join(header.Values("RateLimit-Policy"), ", ")) {
		remaining, known := left[name]["r"]
		quota := policy["q"]
		span, windowed := policy["w"]
		if !windowed {
			span, windowed = left[name]["t"], known
		}
		if !known || quota == 0 || !windowed {
			continue
		}
		reported = true
		if remaining*2 <= quota {
			slowest = max(slowest, time.Duration(float64(span)/float64(quota)*float64(time.Second)))
		}
	}
	return slowest, reported
}

func retryAfter(value string, now time.Time) (time.Duration, bool) {
	if digitsOnly.MatchString(value) {
		seconds, _ := strconv.ParseInt(value, 10, 64)
		return time.Duration(min(seconds, 1<<32)) * time.Second, true
	}
	date, err := http.ParseTime(value)
	return max(0, date.Sub(now)), err == nil
}

const slots = 12

// Throttle drops requests here that the service would most likely refuse ("Handling Overload" in Google's SRE book).
//
// A request is dropped with probability max(0, (requests - K*accepts) / (requests + 1)), both counted over the last Window. With K 2,
// a service that accepts at least half is never throttled.
type Throttle struct {
	k      float64
	slot   time.Duration
	now    func() time.Time
	random func() float64
	mutex  sync.Mutex
	// Requests and accepts of each slot of time.
	counts [slots][2]float64
	newest int64
}

// NewThrottle makes one; 2 and two minutes are usual.
func NewThrottle(k float64, window time.Duration) *Throttle {
	return &Throttle{k: k, slot: window / slots, now: time.Now, random: rand.Float64}
}

// Allow says whether to send a request now. It counts as one either way.
func (t *Throttle) Allow() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	slot := t.current()
	var requests, accepts float64
	for _, count := range t.counts {
		requests += count[0]
		accepts += count[1]
	}
	slot[0]++
	return t.random() >= max(0, (requests-t.k*accepts)/(requests+1))
}

// Heard takes in whether the service took a request that was sent.
func (t *Throttle) Heard(accepted bool) {
	if accepted {
		t.mutex.Lock()
		defer t.mutex.Unlock()
		t.current()[1]++
	}
}

func (t *Throttle) current() *[2]float64 {
	now := t.now().UnixNano() / int64(t.slot)
	for late := min(now-t.newest, slots); late > 0; late-- {
		t.counts[(now-late+1)%slots] = [2]float64{}
	}
	t.newest = max(t.newest, now)
	return &t.counts[t.newest%slots]
}
