package mailappliance

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

const eventBody = `{"id":"evt_1","type":"email.bounced","created_at":"2026-01-02T12:00:00Z","data":{"email_id":"msg_1",` +
	`"recipient_id":"rcp_1","to":"b@example.net","from":"a@example.com","subject":"Grüße","smtp_code":550,"smtp_response":"no","later":1},"later":2}`

func signature(t int64, body, secret string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d.%s", t, body)
	return hex.EncodeToString(mac.Sum(nil))
}

func TestVerify(t *testing.T) {
	now := noon.Unix()
	good := signature(now, eventBody, "whsec_1")
	other := signature(now, eventBody, "whsec_2")
	at := func(seconds int64) string {
		return fmt.Sprintf("t=%d,v1=%s", seconds, signature(seconds, eventBody, "whsec_1"))
	}
	signed := func(body string) string { return fmt.Sprintf("t=%d,v1=%s", now, signature(now, body, "whsec_1")) }
	tests := []struct {
		name, body, header string
		secrets            []string
		ok                 bool
	}{
		{"good", eventBody, at(now), nil, true},
		{"the second secret", eventBody, at(now), []string{"whsec_2", "whsec_1"}, true},
		{"the second v1", eventBody, fmt.Sprintf("t=%d,v1=%s,v1=%s", now, other, good), nil, true},
		{"another order and unknown parts", eventBody, fmt.Sprintf("v0=x, v1=%s,v2 ,t=%d,", good, now), nil, true},
		{"a v1 that is not hex next to a good one", eventBody, fmt.Sprintf("t=%d,v1=zz,v1=%s", now, good), nil, true},
		{"oldest", eventBody, at(now - 300), nil, true},
		{"too old", eventBody, at(now - 301), nil, false},
		{"latest", eventBody, at(now + 300), nil, true},
		{"too late", eventBody, at(now + 301), nil, false},
		{"altered", strings.Replace(eventBody, "550", "250", 1), at(now), nil, false},
		{"another time", eventBody, fmt.Sprintf("t=%d,v1=%s", now+1, good), nil, false},
		{"another secret", eventBody, at(now), []string{"whsec_2"}, false},
		{"the secret without its prefix", eventBody, at(now), []string{"1"}, false},
		{"empty header", eventBody, "", nil, false},
		{"no t", eventBody, "v1=" + good, nil, false},
		{"two t", eventBody, fmt.Sprintf("t=%d,t=%d,v1=%s", now, now, good), nil, false},
		{"no v1", eventBody, fmt.Sprintf("t=%d", now), nil, false},
		{"empty v1", eventBody, fmt.Sprintf("t=%d,v1=", now), nil, false},
		{"half a v1", eventBody, fmt.Sprintf("t=%d,v1=%s", now, good[:32]), nil, false},
		{"t with a sign", eventBody, fmt.Sprintf("t=+%d,v1=%s", now, good), nil, false},
		{"t out of range", eventBody, "t=99999999999999999999,v1=" + good, nil, false},
		{"not JSON", "hello", signed("hello"), nil, false},
		{"not an object", "[]", signed("[]"), nil, false},
		{"no type", `{"id":"e"}`, signed(`{"id":"e"}`), nil, false},
		{"no id", `{"type":"e"}`, signed(`{"type":"e"}`), nil, false},
		{"data that is no object", `{"id":"e","type":"e","data":1}`, signed(`{"id":"e","type":"e","data":1}`), nil, false},
		{"unknown type", `{"id":"e","type":"new"}`, signed(`{"id":"e","type":"new"}`), nil, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.secrets == nil {
				test.secrets = []string{"whsec_1"}
			}
			event, err := VerifyAt(noon, DefaultTolerance, []byte(test.body), test.header, test.secrets...)
			if test.ok != (err == nil && event != nil) || !test.ok && !errors.Is(err, ErrSignatureInvalid) {
				t.Errorf("%+v %v, want it good: %v", event, err, test.ok)
			}
		})
	}
}

func TestVerifyOutOfRangeTimeThatIsSigned(t *testing.T) {
	for _, seconds := range []string{"99999999999999999999", "9223372036854775807"} {
		mac := hmac.New(sha256.New, []byte("s"))
		mac.Write([]byte(seconds + "." + eventBody))
		header := "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
		if _, err := Verify([]byte(eventBody), header, "s"); !errors.Is(err, ErrSignatureInvalid) {
			t.Errorf("%s: %v", seconds, err)
		}
	}
}

func TestVerifyEvent(t *testing.T) {
	now := time.Now().Unix()
	event, err := Verify([]byte(eventBody), fmt.Sprintf("t=%d,v1=%s", now, signature(now, eventBody, "s")), "s")
	want := &Event{ID: "evt_1", Type: "email.bounced", CreatedAt: noon, Data: EventData{EmailID: "msg_1", RecipientID: "rcp_1",
		To: "b@example.net", From: "a@example.com", Subject: "Grüße", SMTPCode: 550, SMTPResponse: "no"}}
	if err != nil || !reflect.DeepEqual(event, want) {
		t.Errorf("%+v %v, want %+v", event, err, want)
	}
}

func TestVerifyMistakes(t *testing.T) {
	header := fmt.Sprintf("t=%d,v1=%s", noon.Unix(), signature(noon.Unix(), eventBody, ""))
	for _, secrets := range [][]string{nil, {""}, {"s", ""}} {
		_, err := VerifyAt(noon, time.Minute, []byte(eventBody), header, secrets...)
		var e *ConfigurationError
		if !errors.As(err, &e) {
			t.Errorf("%q: %v", secrets, err)
		}
	}
	_, err := VerifyAt(noon, -1, []byte(eventBody), header, "s")
	var e *ConfigurationError
	if !errors.As(err, &e) {
		t.Errorf("a negative tolerance: %v", err)
	}
}
