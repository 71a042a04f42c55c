// A scrape as a test reads it: Prometheus' text format, parsed strictly.
#ifndef HYDRANT_TESTS_SERVER_SCRAPE_H_
#define HYDRANT_TESTS_SERVER_SCRAPE_H_

#include <map>
#include <string>

namespace hydrant {

struct Scrape {
  std::map<std::string, std::string> types;  // of families by name: "gauge", "counter", "histogram"
  std::map<std::string, double> series;      // by name{label="value",...} as the line has it

  // Adds a test failure and returns NaN where there is no such series.
  double operator[](const std::string& name) const;
  // Over all series of the family, whatever their labels.
  double Sum(const std::string& family) const;
};

// Adds a test failure for every line that is none of the format.
Scrape ParseScrape(const std::string& text);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_SCRAPE_H_
