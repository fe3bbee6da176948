# frozen_string_literal: true

require_relative "lib/mail_appliance/version"

Gem::Specification.new do |spec|
  spec.name = "mail_appliance"
  spec.version = MailAppliance::VERSION
  spec.summary = "The client of the mail appliance: send mail, follow it, verify webhooks."
  spec.description = "Sends transactional email through a mail appliance over HTTP, with idempotency keys, retries, " \
                     "time-outs and webhook verification; has a delivery method for ActionMailer. " \
                     "Standard library only."
  spec.license = "MIT"
  spec.authors = ["The mail appliance developers"]
  spec.homepage = "https://mail-appliance.example" # a placeholder until publication: packaging/publish.md
  spec.required_ruby_version = ">= 3.0"
  spec.files = Dir.chdir(__dir__) { Dir["CHANGELOG.md", "LICENSE", "README.md", "lib/**/*.rb", "sig/**/*.rbs"] }
  spec.require_paths = ["lib"]
  spec.metadata = {
    "bug_tracker_uri" => "#{spec.homepage}/issues",
    "changelog_uri" => "#{spec.homepage}/clients/ruby/CHANGELOG.md",
    "documentation_uri" => "#{spec.homepage}/docs/clients.md",
    "source_code_uri" => "#{spec.homepage}/mail-appliance.git",
    "rubygems_mfa_required" => "true"
  }
end
