# frozen_string_literal: true

require "helper"
require "open3"
require "rubygems"

class TestPackage < LibraryTest
  # Tests that give arguments of a wrong type on purpose.
  MISTYPED = "/settings_are_checked|mistakes_are_found_before/"

  def test_the_version_is_that_of_all_client_libraries
    assert_equal File.read(File.join(ROOT, "../VERSION")).strip, MailAppliance::VERSION
  end

  def test_the_gem_needs_nothing_and_has_all_files
    spec = Gem::Specification.load(File.join(ROOT, "mail_appliance.gemspec"))
    assert_empty spec.dependencies
    assert_equal "1.2.0", spec.version.to_s
    assert spec.required_ruby_version.satisfied_by?(Gem::Version.new("3.0.0"))
    assert_equal Dir[File.join(ROOT, "lib/**/*.rb")].map { |path| path.delete_prefix("#{ROOT}/") }.sort,
                 spec.files.grep(%r{\Alib/}).sort
    assert_empty %w[CHANGELOG.md LICENSE README.md] - spec.files
    assert_equal ["MIT"], spec.licenses
  end

  def test_strings_are_frozen_in_every_file
    Dir[File.join(ROOT, "{lib,test,conformance}/**/*.rb")].each do |path|
      assert_equal "# frozen_string_literal: true\n", File.open(path, &:gets), path
    end
  end

  # RBS checks the arguments and results of every call in these tests.
  def test_the_signatures_hold
    tests = %w[client models webhook testing].map { |name| "require \"./test/test_#{name}.rb\"" }
    environment = { "RBS_TEST_TARGET" => "MailAppliance::*", "RBS_TEST_OPT" => "-r uri -I sig",
                    "RBS_TEST_LOGLEVEL" => "error" }
    command = [Gem.ruby, "-rrbs/test/setup", "-Ilib", "-Itest", "-e", tests.join(";"), "--", "--exclude", MISTYPED]
    output, status = Open3.capture2e(environment, *command, chdir: ROOT)
    assert_predicate status, :success?, output
    assert_match(/\b[1-9]\d* runs/, output)
  end
end
