# frozen_string_literal: true

require "helper"

class TestWebhook < LibraryTest
  include MailAppliance

  NOW = 1_794_830_400
  BODY = '{"id":"evt_1","type":"email.delivered","created_at":"2026-11-16T12:00:00Z",' \
         '"data":{"email_id":"msg_1","to":"ä@example.net","smtp_code":250},"version":2}'

  def signature(secret, time = NOW, body = BODY)
    OpenSSL::HMAC.hexdigest("SHA256", secret, "#{time}.#{body}")
  end

  def header(*secrets, time: NOW, body: BODY)
    ["t=#{time}", *secrets.map { |secret| "v1=#{signature(secret, time, body)}" }].join(",")
  end

  def verify(body: BODY, header: header("whsec_a"), secrets: "whsec_a", now: NOW, **options)
    MailAppliance.verify(body, header, secrets, now: now, **options)
  end

  def refused(**arguments)
    assert_raises(SignatureInvalid, arguments.inspect) { verify(**arguments) }
  end

  def test_a_good_one
    event = verify
    assert_equal ["evt_1", "email.delivered", Time.utc(2026, 11, 16, 12)], [event.id, event.type, event.created_at]
    assert_equal({ email_id: "msg_1", to: "ä@example.net", smtp_code: 250 }, event.data)
    assert_predicate event.data, :frozen?
  end

  def test_the_clock_is_the_system_clock_by_default
    time = Time.now.to_i
    assert_equal "evt_1", MailAppliance.verify(BODY, header("whsec_a", time: time), "whsec_a").id
    assert_raises(SignatureInvalid) { MailAppliance.verify(BODY, header("whsec_a", time: time - 3600), "whsec_a") }
  end

  def test_an_altered_one
    refused(body: BODY.sub("msg_1", "msg_2"))
    refused(body: "#{BODY} ")
    refused(header: header("whsec_b"))
    refused(header: header("whsec_a").sub("t=#{NOW}", "t=#{NOW + 1}"))
  end

  def test_tolerance_in_both_directions
    [-300, 300].each { |difference| assert verify(now: NOW + difference) }
    [-301, 301].each { |difference| refused(now: NOW + difference) }
    assert verify(now: NOW + 3600, tolerance: 3600)
    refused(now: NOW + 2, tolerance: 1)
    assert verify(now: Time.at(NOW))
  end

  def test_several_secrets_and_signatures
    assert verify(secrets: %w[whsec_new whsec_a])
    assert verify(header: header("whsec_b", "whsec_a"))
    assert verify(header: "v0=x,v1=#{signature("whsec_a")},t=#{NOW},v1=zz,y")
    refused(secrets: %w[whsec_b whsec_c])
    refused(header: header)
    refused(header: "t=#{NOW},v2=#{signature("whsec_a")}")
  end

  def test_malformed_headers
    right = signature("whsec_a")
    ["=", "=-#{NOW}", "=+#{NOW}", "=#{NOW}.0", "=#{NOW}\n", "=0x1", "=#{NOW},t=#{NOW}", ""].each do |time|
      refused(header: "t#{time},v1=#{right}")
    end
    ["", "v1", "v1=", "v1=ü", "v1=\xFF", "v1=#{right}0", "v1=#{right[0..-2]}"].each do |signature|
      refused(header: "t=#{NOW},#{signature}")
    end
    [nil, "", ",", "=", "t=#{NOW};v1=#{right}", "v1=#{right}", "\x00", "\xFF"].each { |value| refused(header: value) }
    long = "9" * 40
    refused(header: header("whsec_a", time: long))
  end

  def test_a_signed_body_that_is_no_event
    ["", "x", "[]", "null", "5", "{}", '{"id":"evt_1"}', '{"id":1,"type":"t","data":{}}',
     '{"id":"1","type":2,"data":{}}', '{"id":"1","type":"t","data":[]}', '{"id":"1","type":"t"}',
     "\xFF", "{\"id\":\"\xFF\",\"type\":\"t\",\"data\":{}}",
     "[" * 200].each { |body| refused(body: body, header: header("whsec_a", body: body)) }
  end

  def test_no_secret
    [[], [""], ["whsec_a", ""], nil, "", [nil]].each do |secrets|
      assert_raises(ConfigurationError) { verify(secrets: secrets) }
    end
  end

  def test_unknown_types_are_kept
    body = '{"id":"evt_1","type":"email.opened","data":{"device":"phone"}}'
    event = verify(body: body, header: header("whsec_a", body: body))
    assert_equal ["email.opened", nil, "phone"], [event.type, event.created_at, event.data[:device]]
  end
end
