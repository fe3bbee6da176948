# frozen_string_literal: true

require "helper"
require "action_controller"
require "action_mailer"
require "fileutils"
require "mail_appliance/action_mailer"
require "mail_appliance/testing"
require "open3"
require "rack/mock"
require "tmpdir"

# Every code block of README.md is run here, with a loopback server instead of mail.example.com.
class TestReadme < LibraryTest
  README = File.read(File.join(ROOT, "README.md"))
  BLOCKS = README.scan(/^```(\w+)\n(.*?)^```$/m)

  # The block that has this text.
  def block(text, url: "http://127.0.0.1:9")
    found = BLOCKS.map(&:last).select { |code| code.include?(text) }
    assert_equal 1, found.size, text
    found.first.gsub("https://mail.example.com", url)
  end

  # The names that a block uses without defining them are methods of +scope+.
  def run_block(code, scope = Object.new)
    scope.instance_eval(code, "README.md")
  end

  def test_every_block_is_run_here
    texts = File.read(__FILE__).scan(/block\("([^"]+)"/).flatten
    BLOCKS.each { |_, code| assert(texts.any? { |text| code.include?(text) }, code) }
  end

  def test_install
    Dir.mktmpdir do |folder|
      FileUtils.cp_r(%w[CHANGELOG.md LICENSE lib sig README.md mail_appliance.gemspec].map { |name| File.join(ROOT, name) }, folder)
      File.write("#{folder}/gemrc", "gem: --no-document")
      environment = { "GEM_HOME" => "#{folder}/gems", "GEM_PATH" => "#{folder}/gems", "GEMRC" => "#{folder}/gemrc",
                      "RUBYLIB" => nil, "RUBYOPT" => nil }
      output, status = Open3.capture2e(environment, "sh", "-ec", block("gem build"), chdir: folder)
      assert_predicate status, :success?, output
      version, = Open3.capture2e(environment, Gem.ruby, "-e", "require 'mail_appliance'; print MailAppliance::VERSION")
      assert_equal "1.2.0", version
    end
  end

  def test_first_send
    serving(answer(202)) do |server|
      with_environment("MAIL_APPLIANCE_URL" => server.url, "MAIL_APPLIANCE_TOKEN" => "token") do
        assert_output("msg_1: queued\n") { run_block(block("order.txt")) }
      end
      assert_equal ["POST /emails"], server.requests.map { |each| "#{each.verb} #{each.path}" }
      assert_equal "order-17", server.requests.first.headers["idempotency-key"]
      files = JSON.parse(server.requests.first.body)["attachments"]
      assert_equal [["order.txt", "MSBlbmdpbmU="]], files.map { |file| file.values_at("filename", "content") }
    end
  end

  def test_delivery_status
    mail = MailAppliance::Testing::FakeClient.new
    sent = mail.send_email(**MESSAGE, to: "bounce@example.net")
    scope = Object.new
    run_block(block("def print_results"), scope)
    assert_output("bounce@example.net: bounced\n") { scope.print_results(mail, sent.id) }
  end

  def with_mail(mail = MailAppliance::Testing::FakeClient.new)
    Object.new.tap { |scope| scope.define_singleton_method(:mail) { mail } }
  end

  def test_batch
    scope = with_mail
    assert_output("0: msg_1\n1: msg_2\n") { run_block(block("mail.send_batch"), scope) }
    assert_equal %w[news-17 news-17], scope.mail.sent.map(&:idempotency_key)
  end

  def test_scheduling
    scope = with_mail
    code = block("mail.reschedule")
    assert_output("") { run_block(code, scope) }
    message = scope.mail.get("msg_1")
    assert_equal ["failed", { "customer" => "17" }], [message.status, message.metadata]
    assert_in_delta Time.now + 93_600, message.scheduled_at, 60
    serving(answer(202), answer(200), error(409, "conflict")) do |server|
      assert_output("already sent\n") { run_block(code, with_mail(client(server.url))) }
    end
  end

  def test_gemfile
    named = []
    scope = Object.new
    scope.define_singleton_method(:gem) { |name, path:| named << [name, path] }
    run_block(block('gem "mail_appliance", path:'), scope)
    assert_equal [["mail_appliance", "../mail-appliance/clients/ruby"]], named
  end

  def test_errors
    mail = MailAppliance::Testing::FakeClient.new(retries: 0)
    told = []
    scope = Object.new
    scope.define_singleton_method(:mail) { mail }
    scope.define_singleton_method(:key) { "k" }
    scope.define_singleton_method(:alert) { |text| told << text }
    scope.define_singleton_method(:later) { |key| told << key }
    code = block("MailAppliance::InsufficientCredits")
    mail.fail_next(402, "insufficient_credits")
    run_block(code, scope)
    mail.fail_next(403, "forbidden")
    run_block(code, scope)
    mail.lose_next
    run_block(code, scope)
    run_block(code, scope)
    assert_equal ["no credits left", "403 forbidden: scripted: forbidden ()", "k"], told
  end

  def test_retries
    assert_instance_of MailAppliance::Client, run_block(block("retries: 5").sub("ma_live_…", "ma_live_x"))
  end

  EVENT = '{"id":"evt_1","type":"email.bounced","created_at":"2026-11-16T12:00:00Z",' \
          '"data":{"to":"ann@example.net","smtp_response":"no such user"}}'

  def webhook(application, secret)
    time = Time.now.to_i
    signature = "t=#{time},v1=#{OpenSSL::HMAC.hexdigest("SHA256", secret, "#{time}.#{EVENT}")}"
    request = Rack::MockRequest.env_for("/", method: "POST", input: EVENT, "CONTENT_TYPE" => "application/json",
                                             "HTTP_SERVICE_SIGNATURE" => signature)
    application.call(request).first
  end

  def test_rack
    application = run_block(block("rack.input"))
    with_environment("WEBHOOK_SECRET" => "whsec_a") do
      assert_output("evt_1 email.bounced ann@example.net no such user\n") do
        assert_equal 204, webhook(application, "whsec_a")
      end
      assert_equal 400, webhook(application, "whsec_b")
    end
    with_environment("WEBHOOK_SECRET" => nil) do
      assert_raises(MailAppliance::ConfigurationError) { webhook(application, "whsec_a") }
    end
  end

  def test_rails_controller
    self.class.class_eval(block("raw_post"), "README.md")
    WebhooksController.logger = Logger.new(log = StringIO.new)
    application = WebhooksController.action(:create)
    with_environment("WEBHOOK_SECRET" => "whsec_new", "OLD_WEBHOOK_SECRET" => "whsec_a") do
      assert_equal [204, 204, 400], %w[whsec_new whsec_a whsec_b].map { |secret| webhook(application, secret) }
    end
    assert_includes log.string, "evt_1 email.bounced ann@example.net"
  end

  def settings(server)
    block("config.action_mailer", url: server.url).sub("ma_live_…", "ma_live_x")
  end

  def assert_delivered(server)
    request = server.requests.first
    assert_equal "order-1234-confirmation", request.headers["idempotency-key"]
    assert_equal %w[orders confirmation], JSON.parse(request.body)["tags"]
  end

  def test_action_mailer
    serving do |server|
      config = Struct.new(:action_mailer).new(ActiveSupport::OrderedOptions.new)
      run_block(settings(server), Object.new.tap { |scope| scope.define_singleton_method(:config) { config } })
      config.action_mailer.each { |name, value| ActionMailer::Base.public_send("#{name}=", value) }
      ActionMailer::Base.logger = nil
      assert_equal "msg_1", self.class.class_eval(block("OrderMailer"), "README.md")
      assert_delivered(server)
    end
  end

  # The same in a Rails application, where the delivery method has to be there before ActionMailer's settings are read.
  def test_action_mailer_in_rails
    skip "railties are not installed" if Gem::Specification.find_all_by_name("railties").empty?
    serving do |server|
      program = <<~RUBY
        require "rails"
        require "action_mailer/railtie"
        require "mail_appliance"
        class Application < Rails::Application
          config.eager_load = false
          config.logger = Logger.new(nil)
          #{settings(server)}
        end
        Application.initialize!
        #{block("OrderMailer")}
      RUBY
      Dir.mktmpdir do |folder|
        output, status = Open3.capture2e(Gem.ruby, "-w", "-I#{ROOT}/lib", "-e", program, chdir: folder)
        assert_predicate status, :success?, output
        refute_includes output, "#{ROOT}/lib"
      end
      assert_delivered(server)
    end
  end

  def test_tests
    code = block("FakeClient.new")
    checks = code.lines.grep(/# =>/).map { |line| line.split("# =>").map(&:strip) }
    assert_equal 2, checks.size
    scope = Object.new
    run_block("#{code.lines.grep_v(/# =>|_next/).join}\n@mail = mail", scope)
    scope.define_singleton_method(:mail) { @mail }
    checks.each { |expression, value| assert_equal run_block(value), run_block(expression, scope) }
    code.lines.grep(/_next/).each { |line| run_block(line, scope) }
    mail = run_block("mail", scope)
    assert_raises(MailAppliance::InsufficientCredits) { mail.send_email(**MESSAGE) }
    assert_predicate mail.send_email(**MESSAGE), :replayed?
  end

  def test_sign_up
    skip "APPLIANCE_COMMAND is not set" unless ENV["APPLIANCE_COMMAND"]
    run_block(block("DevAppliance.start"))
  end
end
