# frozen_string_literal: true

require "helper"

class TestRequest < LibraryTest
  include MailAppliance

  def builder(given = {}, environment = {})
    RequestBuilder.new({ url: "https://mail.example.com", token: "t" }.merge(given), environment)
  end

  def refused(*words, &block)
    failed = assert_raises(ConfigurationError, &block)
    words.each { |word| assert_includes failed.message, word }
  end

  def authorization(given, environment = {})
    RequestBuilder.new({ url: "http://x" }.merge(given), environment).about("1").headers["Authorization"]
  end

  def body(fields)
    JSON.parse(builder.send_email(fields, "k").body)
  end

  def test_urls
    {
      "https://mail.example.com" => "https://mail.example.com/emails/1",
      "https://mail.example.com///" => "https://mail.example.com/emails/1",
      "HTTP://127.0.0.1:8080/api/" => "http://127.0.0.1:8080/api/emails/1",
      "http://[::1]:8080" => "http://[::1]:8080/emails/1"
    }.each { |url, uri| assert_equal uri, builder({ url: url }).about("1").uri.to_s }
  end

  def test_urls_that_are_refused
    ["mail.example.com", "127.0.0.1:80", "ftp://x", "http://", "http:///x", "http://u:p@x", "http://u@x", "http://x?a",
     "http://x/?", "http://x#f", "http://a b", "http://ü", "mailto:a@b", "http:x"].each do |url|
      refused("url", "MAIL_APPLIANCE_URL") { builder({ url: url }) }
    end
  end

  def test_what_is_missing_is_named
    refused("url", "MAIL_APPLIANCE_URL") { builder({ url: nil }) }
    refused("url", "MAIL_APPLIANCE_URL") { builder({ url: "" }, { "MAIL_APPLIANCE_URL" => "" }) }
    refused("MAIL_APPLIANCE_TOKEN", "MAIL_APPLIANCE_USERNAME", "MAIL_APPLIANCE_PASSWORD") { builder({ token: nil }) }
    refused("password", "MAIL_APPLIANCE_PASSWORD") { builder({ token: "", username: "u" }) }
    refused("username", "MAIL_APPLIANCE_USERNAME") { builder({ token: nil, password: "p" }) }
    refused("password", "MAIL_APPLIANCE_PASSWORD") { builder({ token: nil }, { "MAIL_APPLIANCE_USERNAME" => "u" }) }
  end

  def test_what_is_given_twice_is_refused
    refused("token", "username", "MAIL_APPLIANCE_TOKEN") { builder({ username: "u", password: "p" }) }
    refused("token", "password") { builder({ password: "p" }) }
  end

  def test_credentials
    pair = { "MAIL_APPLIANCE_USERNAME" => "eu", "MAIL_APPLIANCE_PASSWORD" => "ep" }
    environment = { "MAIL_APPLIANCE_TOKEN" => "et", **pair }
    assert_equal "Bearer t", authorization({ token: "t" }, environment)
    assert_equal "Basic #{["u:p"].pack("m0")}", authorization({ username: "u", password: "p" }, environment)
    assert_equal "Basic #{["u:ep"].pack("m0")}", authorization({ username: "u" }, environment)
    assert_equal "Bearer et", authorization({}, environment)
    assert_equal "Bearer et", authorization({ token: "", username: "" }, environment)
    assert_equal "Basic #{["eu:ep"].pack("m0")}", authorization({}, pair)
    assert_equal "Basic YWRhOnDDpDrDn+KCrA==", authorization({ username: "ada", password: "pä:ß€" })
  end

  def test_credentials_that_no_header_can_carry
    refused("token") { builder({ token: "a\r\nX: y" }) }
    refused("token") { builder({ token: "ü" }) }
    refused("username") { builder({ token: nil, username: "a:b", password: "p" }) }
  end

  def test_the_environment_has_the_url
    request = RequestBuilder.new({ token: "t" }, { "MAIL_APPLIANCE_URL" => "http://x/" }).about("1")
    assert_equal "http://x/emails/1", request.uri.to_s
  end

  def test_headers
    request = builder.send_email({ from: "a" }, "k")
    assert_equal "POST", request.verb
    assert_equal(
      { "Authorization" => "Bearer t", "Content-Type" => "application/json", "Accept" => "application/json",
        "Idempotency-Key" => "k", "User-Agent" => "mail-appliance-ruby/1.2.0 ruby/#{RUBY_VERSION}" }, request.headers
    )
    assert_equal %w[Accept Authorization User-Agent], builder.about("1").headers.keys.sort
    assert_nil builder.about("1").body
  end

  def test_ids_are_escaped
    { "msg_1-a.b~" => "msg_1-a.b~", "a/b?c#d e%" => "a%2Fb%3Fc%23d%20e%25", "ü" => "%C3%BC", :msg => "msg" }
      .each { |id, escaped| assert_equal "/emails/#{escaped}", builder.about(id).uri.request_uri }
    refused("id") { builder.about("") }
    refused("id") { builder.about(nil) }
  end

  def test_keys
    ["a", "a b", "!~", "x" * 255].each do |key|
      assert_equal key, builder.send_email({}, key).headers["Idempotency-Key"]
    end
    ["", " a", "a ", "ü", "a\n", "a\u0000b", "\x7F", "x" * 256, "\xFF", 5].each do |key|
      refused("idempotency_key") { builder.send_email({}, key) }
    end
  end

  def test_what_is_nil_is_left_out
    assert_equal({ "from" => "a", "to" => ["b"] }, body({ from: "a", to: ["b"], cc: nil }))
  end

  def test_text_becomes_utf8
    text = { "text" => "Grüße 🎉", "subject" => "Grüße", "html" => "Grüße" }
    assert_equal text, body({ text: "Grüße 🎉", subject: "Grüße".encode("ISO-8859-1"), html: "Grüße".b })
  end

  def test_what_json_cannot_carry_is_named
    { "text" => "\xFF", "subject" => "\xFC".b, "to[1]" => ["a", "\xFF"], "headers.X-A" => { "X-A" => "\xFF" },
      "variables.at" => { at: Time.now }, "variables.price" => { price: Float::NAN },
      "tags" => Object.new, "html" => "\x00\xD8".dup.force_encoding("UTF-16LE") }
      .each { |field, value| refused(field) { body({ field[/\w+/].to_sym => value }) } }
  end

  def test_values
    variables = { name: :ann, "count" => 3, price: 1.5, vip: true, none: nil }
    expected = { "name" => "ann", "count" => 3, "price" => 1.5, "vip" => true, "none" => nil }
    assert_equal expected, body({ variables: variables })["variables"]
  end

  def test_attachments_are_base64
    bytes = (0..255).to_a.pack("C*")
    file = Attachment.from_bytes(bytes, filename: "ä.bin")
    logo = Attachment.from_bytes("x", filename: "l.png", content_type: "image/png", content_id: "logo")
    assert_equal(
      [{ "filename" => "ä.bin", "content" => [bytes].pack("m0") },
       { "filename" => "l.png", "content_type" => "image/png", "content_id" => "logo", "content" => "eA==" }],
      body({ attachments: [file, logo] })["attachments"]
    )
  end
end
