package mailappliance

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func answered(status int, body string, header ...string) *answer {
	a := &answer{status: status, header: http.Header{}, body: []byte(body)}
	for i := 0; i < len(header); i += 2 {
		a.header.Set(header[i], header[i+1])
	}
	return a
}

func refused(code string) string {
	return `{"error":"no","code":"` + code + `","request_id":"req_1"}`
}

// What follows one attempt, with retries left: a row for each row of the table in plan.go and its edges.
func TestPlanNext(t *testing.T) {
	lost := errors.New("connection reset")
	tests := []struct {
		name  string
		after attempt
		retry bool
		pause time.Duration
		api   bool // err is an *Error
		lost  bool // err is a *ConnectionError
	}{
		{name: "accepted", after: attempt{answer: answered(202, `{"id":"m"}`)}},
		{name: "read", after: attempt{answer: answered(200, `{"id":"m","status":"new","later":1}`)}},
		{name: "without an id", after: attempt{answer: answered(202, `{"status":"queued"}`)}, api: true},
		{name: "an id that is no string", after: attempt{answer: answered(202, `{"id":7}`)}, api: true},
		{name: "a list", after: attempt{answer: answered(200, `[{"id":"m"}]`)}, api: true},
		{name: "empty", after: attempt{answer: answered(204, ``)}, api: true},
		{name: "lost", after: attempt{err: lost, random: 0.5}, retry: true, pause: 250 * time.Millisecond, lost: true},
		{name: "untrusted", after: attempt{err: lost, permanent: true}, lost: true},
		{name: "429", after: attempt{answer: answered(429, refused("rate_limited"), "Retry-After", "1"), random: 0.5},
			retry: true, pause: 1050 * time.Millisecond, api: true},
		{name: "429 at the limit", after: attempt{answer: answered(429, "", "Retry-After", "30")},
			retry: true, pause: 30 * time.Second, api: true},
		{name: "429 over the limit", after: attempt{answer: answered(429, "", "Retry-After", "31")}, api: true},
		{name: "503 without a header", after: attempt{answer: answered(503, "<html>"), random: 0.5},
			retry: true, pause: 250 * time.Millisecond, api: true},
		{name: "503 with a header that cannot be read", after: attempt{answer: answered(503, "", "Retry-After", "soon"), random: 0.5},
			retry: true, pause: 250 * time.Millisecond, api: true},
		{name: "503 with a date", after: attempt{answer: answered(503, "", "Retry-After", "Fri, 02 Jan 2026 12:00:10 GMT"), random: 0},
			retry: true, pause: 10 * time.Second, api: true},
		{name: "in progress", after: attempt{answer: answered(409, refused("idempotency_in_progress"), "Retry-After", "0"), random: 0.9},
			retry: true, api: true},
		{name: "conflict of keys", after: attempt{answer: answered(409, refused("idempotency_conflict"))}, api: true},
		{name: "409 of a proxy", after: attempt{answer: answered(409, "idempotency_in_progress")}, api: true},
		{name: "400", after: attempt{answer: answered(400, refused("invalid_request"), "Retry-After", "1")}, api: true},
		{name: "500", after: attempt{answer: answered(500, refused("internal_error"))}, api: true},
		{name: "502 of a proxy", after: attempt{answer: answered(502, "<html>")}, api: true},
		{name: "a redirect", after: attempt{answer: answered(302, `{"id":"m"}`, "Location", "/")}, api: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.after.now = noon
			p := plan{key: "k", retries: 3}
			got := p.next(test.after)
			if got.retry != test.retry || got.pause != test.pause {
				t.Errorf("retry %v after %v, want %v after %v", got.retry, got.pause, test.retry, test.pause)
			}
			var api *Error
			if errors.As(got.err, &api) != test.api {
				t.Errorf("error %v, want an *Error: %v", got.err, test.api)
			}
			var connection *ConnectionError
			if errors.As(got.err, &connection) != test.lost || test.lost && !errors.Is(got.err, lost) {
				t.Errorf("error %v, want a *ConnectionError: %v", got.err, test.lost)
			}
			if got.err != nil && IdempotencyKey(got.err) != "k" {
				t.Errorf("key %q", IdempotencyKey(got.err))
			}
		})
	}
}

// A plan ends after its retries, with growing pauses before each.
func TestPlanEnds(t *testing.T) {
	for _, retries := range []int{0, 1, 3, 6} {
		p := plan{retries: retries}
		want := []time.Duration{500, 1000, 2000, 4000, 8000, 8000}
		for n := 0; n < retries; n++ {
			got := p.next(attempt{err: errors.New("lost"), random: 1})
			if !got.retry || got.pause != want[n]*time.Millisecond {
				t.Errorf("retry %d of %d: %+v, want a pause of %v ms", n, retries, got, want[n])
			}
		}
		if got := p.next(attempt{err: errors.New("lost")}); got.retry || got.err == nil {
			t.Errorf("after %d retries: %+v, want an error", retries, got)
		}
	}
}

func TestBackoffOfManyRetries(t *testing.T) {
	if got := backoff(5000, 1); got != maxPause {
		t.Errorf("%v, want %v", got, maxPause)
	}
}

func TestRetryAfter(t *testing.T) {
	tests := []struct {
		value string
		want  time.Duration
		ok    bool
	}{
		{"", 0, false},
		{"0", 0, true},
		{" 7 ", 7 * time.Second, true},
		{"3600", time.Hour, true},
		{"-1", 0, false},
		{"+1", 0, false},
		{"1.5", 0, false},
		{"soon", 0, false},
		{"9223372037", math.MaxInt64, true},
		{"99999999999999999999999", math.MaxInt64, true},
		{"Fri, 02 Jan 2026 13:00:00 GMT", time.Hour, true},
		{"Friday, 02-Jan-26 12:00:05 GMT", 5 * time.Second, true},
		{"Fri, 02 Jan 2026 11:00:00 GMT", 0, true},
	}
	for _, test := range tests {
		if got, ok := retryAfter(test.value, noon); got != test.want || ok != test.ok {
			t.Errorf("%q: %v %v, want %v %v", test.value, got, ok, test.want, test.ok)
		}
	}
}

func TestAPIError(t *testing.T) {
	tests := []struct {
		name string
		from *answer
		want Error
	}{
		{"error object", answered(402, refused("insufficient_credits"), "X-Request-ID", "req_header"),
			Error{Status: 402, Code: "insufficient_credits", Message: "no", RequestID: "req_1"}},
		{"without request id", answered(400, `{"error":"no","code":"new_code"}`, "X-Request-ID", "req_header"),
			Error{Status: 400, Code: "new_code", Message: "no", RequestID: "req_header"}},
		{"page", answered(502, "<html>\r\n <b>Bad\x00 Gateway\xff</b>", "X-Request-ID", "req_header"),
			Error{Status: 502, Message: "HTTP 502: <html> <b>Bad Gateway </b>", RequestID: "req_header"}},
		{"code that is no string", answered(500, `{"error":"no","code":7}`),
			Error{Status: 500, Message: `HTTP 500: {"error":"no","code":7}`}},
		{"long", answered(500, strings.Repeat("ü", 5000)),
			Error{Status: 500, Message: "HTTP 500: " + strings.Repeat("ü", messageLimit)}},
	}
	for _, test := range tests {
		if got := apiError(test.from, 0, ""); *got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, *got, test.want)
		}
	}
}

// Pauses of Wait grow to a limit, and the last one ends with the time.
func TestWaiting(t *testing.T) {
	w := waiting{timeout: time.Minute}
	var elapsed time.Duration
	var pauses []time.Duration
	for i := 0; i < 100; i++ {
		pause, more := w.next(elapsed)
		if !more {
			break
		}
		pauses = append(pauses, pause)
		elapsed += pause
	}
	if elapsed != time.Minute {
		t.Errorf("waited %v, want a minute", elapsed)
	}
	last := len(pauses) - 1
	for i, pause := range pauses[:last] {
		want := math.Min(10, 0.5*math.Pow(1.5, float64(i)))
		if math.Abs(pause.Seconds()-want) > 1e-6 {
			t.Errorf("pause %d: %v, want %v s", i, pause, want)
		}
	}
	if pauses[last] <= 0 || pauses[last] > waitMaxPause {
		t.Errorf("last pause %v", pauses[last])
	}
}
