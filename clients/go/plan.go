package mailappliance

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The planning core: what follows an attempt, and when. It does no I/O; the
// time and the random numbers are given to it.
//
//	how the attempt ended                       while retries are left   after the last
//	2xx, a JSON object with an id               return the answer        return the answer
//	no whole answer                             retry after a pause      *ConnectionError
//	a certificate that does not verify          *ConnectionError         *ConnectionError
//	429, 503, 409 idempotency_in_progress       retry after a pause      *Error
//	  the same with Retry-After over 30 s       *Error                   *Error
//	any other status, any other 2xx             *Error                   *Error

const (
	maxRetryAfter  = 30 * time.Second // longer pauses are left to the caller
	maxPause       = 8 * time.Second  // without Retry-After
	firstPause     = 500 * time.Millisecond
	retryAfterMore = 0.1 // of Retry-After, so that clients refused together do not return together

	waitFirstPause = 500 * time.Millisecond
	waitMaxPause   = 10 * time.Second
	waitGrowth     = 1.5

	messageLimit = 200 // characters of an answer's text in an error
)

// answer is one whole HTTP answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// attempt is how one attempt ended: with an answer, or with err because no
// whole answer came.
type attempt struct {
	answer    *answer
	err       error
	permanent bool      // a retry cannot help
	now       time.Time // when the attempt ended, for a Retry-After that is a date
	random    float64   // uniform in [0, 1), for the pause
}

// plan is the state of one call: the attempts that may still follow.
type plan struct {
	key     string // the idempotency key, for errors; empty for GET
	isBatch bool   // the answer is that of a batch
	retries int    // how many may follow the first attempt
	done    int    // how many have followed it
}

// step is what to do after an attempt: return the answer (retry is false and
// err nil), return err, or try again after pause. With retry, err is why.
type step struct {
	retry bool
	pause time.Duration
	err   error
}

// next decides what follows an attempt.
func (p *plan) next(a attempt) step {
	if a.answer == nil {
		err := &ConnectionError{Err: a.err, IdempotencyKey: p.key}
		if a.permanent {
			return step{err: err}
		}
		return p.again(err, backoff(p.done, a.random))
	}
	if a.answer.succeeded(p.isBatch) {
		return step{}
	}
	pause, asked := retryAfter(a.answer.header.Get("Retry-After"), a.now)
	err := apiError(a.answer, pause, p.key)
	if !temporary(err) || pause > maxRetryAfter {
		return step{err: err}
	}
	if !asked {
		return p.again(err, backoff(p.done, a.random))
	}
	return p.again(err, pause+time.Duration(float64(pause)*retryAfterMore*a.random))
}

// again is a retry after pause while retries are left, then err.
func (p *plan) again(err error, pause time.Duration) step {
	if p.done >= p.retries {
		return step{err: err}
	}
	p.done++
	return step{retry: true, pause: pause, err: err}
}

func temporary(e *Error) bool {
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusConflict:
		return e.Code == string(ErrIdempotencyInProgress)
	}
	return false
}

// backoff is the pause before retry n (from 0) when the server asked for none:
// full jitter, so that clients cut off together do not return together.
func backoff(n int, random float64) time.Duration {
	limit := math.Min(float64(maxPause), float64(firstPause)*math.Pow(2, float64(n)))
	return time.Duration(limit * random)
}

// retryAfter reads a Retry-After header: seconds or an HTTP date. The second
// result is false when the header is missing or cannot be read.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if digits(value) {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true // more than fits, so more than any limit
		}
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if !date.After(now) {
		return 0, true
	}
	return date.Sub(now), true
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// succeeded reports whether the answer is a result: 2xx and a JSON object with
// an id, or with the results of a batch.
func (a *answer) succeeded(isBatch bool) bool {
	var object struct {
		ID      string            `json:"id"`
		Results []json.RawMessage `json:"results"`
	}
	if a.status/100 != 2 {
		return false
	}
	err := json.Unmarshal(a.body, &object)
	if isBatch {
		return err == nil && object.Results != nil
	}
	return err == nil && object.ID != ""
}

// decode fills a result from an answer that succeeded. A field of another type
// than expected stays empty: the message was accepted all the same.
func (a *answer) decode(result any, key string) error {
	var otherType *json.UnmarshalTypeError
	err := json.Unmarshal(a.body, result)
	if err == nil || errors.As(err, &otherType) {
		return nil
	}
	e := apiError(a, 0, key)
	e.Message = fmt.Sprintf("HTTP %d: %v", a.status, err)
	return e
}

// apiError is the error that an answer stands for. An answer that is not an
// error object, such as the page of a proxy, has no code.
func apiError(a *answer, pause time.Duration, key string) *Error {
	e := &Error{
		Status:         a.status,
		RequestID:      a.header.Get("X-Request-ID"),
		RetryAfter:     pause,
		IdempotencyKey: key,
	}
	var object struct {
		Message   *string `json:"error"`
		Code      *string `json:"code"`
		RequestID string  `json:"request_id"`
	}
	if json.Unmarshal(a.body, &object) != nil || object.Message == nil || object.Code == nil {
		e.Message = fmt.Sprintf("HTTP %d: %s", a.status, beginning(a.body))
		return e
	}
	e.Message, e.Code = *object.Message, *object.Code
	if object.RequestID != "" {
		e.RequestID = object.RequestID
	}
	return e
}

// beginning is the start of a body as one line of printable text.
func beginning(body []byte) string {
	const utfMax = messageLimit * utf8.UTFMax
	if len(body) > utfMax {
		body = body[:utfMax]
	}
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			return r
		}
		return ' '
	}, string(body))
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) > messageLimit {
		runes = runes[:messageLimit]
	}
	return string(runes)
}

// waiting is the state of one Wait: the pause before the next look, and the
// time after which polling stops.
type waiting struct {
	timeout time.Duration
	pause   time.Duration // of the last look; 0 before the first
}

// next is the pause before the next look at a message that is not final,
// elapsed after the start. It is false when the time is over. The last pause
// is cut short, so that the last look is at the end.
func (w *waiting) next(elapsed time.Duration) (time.Duration, bool) {
	left := w.timeout - elapsed
	if left <= 0 {
		return 0, false
	}
	switch {
	case w.pause == 0:
		w.pause = waitFirstPause
	case w.pause < waitMaxPause:
		w.pause = time.Duration(math.Min(float64(waitMaxPause), float64(w.pause)*waitGrowth))
	}
	if w.pause > left {
		return left, true
	}
	return w.pause, true
}
