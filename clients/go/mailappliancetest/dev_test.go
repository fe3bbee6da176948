package mailappliancetest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
	"github.com/mail-appliance/mail-appliance-go/mailappliancetest"
)

func signUp(t *testing.T, appliance *mailappliancetest.Dev, address string) {
	t.Helper()
	_, err := appliance.Client(t).Send(context.Background(), mailappliance.Email{
		From:    "shop@my.test",
		To:      []string{address},
		Subject: "Confirm your address",
		Text:    "https://my.test/confirm?token=42",
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSignUp(t *testing.T) {
	appliance := mailappliancetest.StartDev(t)
	signUp(t, appliance, "ada@example.net") // your program, with appliance.URL or appliance.SMTPPort
	mail, err := appliance.Wait("ada@example.net", "confirm", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(mail.Text, "confirm?token=") {
		t.Errorf("received %+v", mail)
	}
}

func TestClear(t *testing.T) {
	appliance := mailappliancetest.StartDev(t)
	signUp(t, appliance, "ada@example.net")
	if err := appliance.Clear(); err != nil {
		t.Fatal(err)
	}
	if _, err := appliance.Wait("", "", 0); err == nil {
		t.Error("a message after Clear")
	}
}
